"""The privacy cost of integer noise compared with noise in real numbers."""
