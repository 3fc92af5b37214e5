"""A small file with random text, in the form of the corpus chitchat."""

import json

import numpy as np

WORDS = ('the', 'a', 'of', 'value', 'returns', 'is', 'name', 'to', 'and', 'for')
PEOPLE = 40


def write(folder, people=PEOPLE):
  """Writes `dataset.json`, in which people exchange random words."""
  generator = np.random.default_rng(0)
  conversations = {}
  for person in range(people):
    turns = [
      [
        {
          'text': ' '.join(generator.choice(WORDS, 8)) + '.',
          'timestamp': f'2018-05-02T19:{minute:02d}:00Z',
          'sender': f'person-{(person + minute) % people}',
        }
      ]
      for minute in range(6)
    ]
    conversations[f'conversation-{person}'] = {'messages': turns, 'prompt': ''}
  (folder / 'dataset.json').write_text(json.dumps(conversations))
  return folder
