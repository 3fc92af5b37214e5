// Recomputes the claims of this page from the numbers that it embeds.
// b, k: least distance, and maximum number, of the rounds of one client
// c: first column of the matrix C
// mu: square root of the sum over runs of (1 / noise multiplier)^2
// Phi: distribution function of the standard normal
// TAU: bound of the probability that a run stops
// epsilon is the least x with total(x) <= delta, where, for r runs,
//   total(x) = Phi(mu/2 - x/mu) - e^x Phi(-mu/2 - x/mu) + (1 + e^x) r TAU
'use strict';

const MOST_ROUNDS = 1e7, MOST_PRODUCTS = 2e8, TAU = 3.2e-39;

// Returns log(Phi(x)); the relative error of Phi is below 1e-12, in tails too.
function logPhi(x) {
  if (x > 0) return Math.log1p(-Math.exp(logPhi(-x)));
  if (x > -2) {
    let term = x, sum = x;
    for (let i = 3; Math.abs(term) > 1e-18; i += 2) sum += term *= x * x / i;
    return Math.log(0.5 + sum * Math.exp(-x * x / 2) / Math.sqrt(2 * Math.PI));
  }
  let rest = 0;  // The Mills ratio is 1 / (rest - x), a continued fraction.
  for (let i = 300; i > 0; i--) rest = i / (rest - x);
  return -x * x / 2 - Math.log(Math.sqrt(2 * Math.PI) * (rest - x));
}

// Returns the least x in [0, high] with holds(x), rounded up. `holds` is false
// below this x and true above it.
function least(holds, high) {
  if (holds(0)) return 0;
  if (!holds(high)) return Infinity;
  for (let low = 0; high - low > 1e-13 * high;) {
    const middle = (low + high) / 2;
    if (holds(middle)) high = middle; else low = middle;
  }
  return high;
}

// Returns delta at epsilon of one Gaussian release, rounded up.
function gaussianDelta(mu, epsilon) {
  const half = mu / 2, shift = epsilon / mu;
  const first = Math.exp(logPhi(half - shift));
  const second = Math.exp(epsilon + logPhi(-half - shift));
  const rounding = 1e-15 * (100 + (half + shift) ** 2) * first;
  return Math.min(1, Math.max(0, first - second) + rounding);
}

// Returns epsilon at `delta` of a number of runs that are one Gaussian release.
function epsilonAt(mu, runs, delta) {
  const total = x => gaussianDelta(mu, x) + (1 + Math.exp(x)) * runs * TAU;
  // `total` falls until Phi(-mu/2 - x/mu) is runs TAU, and rises after that.
  const x = least(x => total(x) <= delta
    || logPhi(-mu / 2 - x / mu) < Math.log(runs * TAU), 100);
  return total(x) <= delta ? x : Infinity;
}

// Returns the first column of a Toeplitz C, without its zeros at the end.
function column(series, rounds) {
  if (series.coefficients) return Float64Array.from(series.coefficients);
  const inverse = series.inverse_coefficients, powers = [...series.omega || []];
  const few = (inverse || series.omega || [1]).length;
  if (rounds * few > MOST_PRODUCTS) return null;
  const c = new Float64Array(rounds);
  for (let t = 0; t < rounds; t++) {
    if (inverse) {
      let sum = t ? 0 : 1;
      for (let s = 1; s < few && s <= t; s++) sum -= inverse[s] * c[t - s];
      c[t] = sum / inverse[0];
    } else if (series.omega) {
      c[t] = t ? powers.reduce((sum, power) => sum + power, 0) : 1;
      if (t) series.theta.forEach((theta, i) => { powers[i] *= theta; });
    } else {
      c[t] = t ? c[t - 1] * (t - 0.5) / t * series.decay : 1;
    }
  }
  return c;
}

// Returns the norm of the sum of columns 0, b, ..., (k - 1) b of C. If
// `normalized`, the columns of C are first divided by their norms.
function leftmost(c, rounds, minSep, k, normalized) {
  const rows = new Float64Array(rounds), squares = [0];
  for (let m = 0; m < rounds && normalized; m++) {
    squares.push(squares[m] + (c[m] || 0) ** 2);
  }
  for (let i = 0; i < k * minSep; i += minSep) {
    const norm = normalized ? Math.sqrt(squares[rounds - i]) : 1;
    const end = Math.min(rounds, i + c.length);
    for (let t = i; t < end; t++) rows[t] += Math.abs(c[t - i]) / norm;
  }
  return Math.sqrt(rows.reduce((sum, row) => sum + row * row, 0));
}

// Returns {value}, the sensitivity of a run, if a theorem gives it exactly.
// Else returns {reason}, which says why the sensitivity is not recomputed.
function sensitivity(run) {
  const {rounds, participation, series, normalized} = run;
  if (!['single', 'min-sep', 'fixed-epoch'].includes(participation)) {
    return {reason: `participation "${participation}" has no formula here`};
  }
  if (!series) return {reason: `"${run.family}" is not made of few numbers`};
  const once = participation === 'single', minSep = once ? rounds : run.min_sep;
  const most = once ? 1 : run.max_participations || Infinity;
  const k = Math.min(most, Math.ceil(rounds / minSep));
  const c = rounds > MOST_ROUNDS ? null : column(series, rounds);
  if (!c || c.length * k > MOST_PRODUCTS) {
    return {reason: 'so many rounds take too long here'};
  }
  const positive = c.every(value => value >= 0);
  const falls = c.every((value, t) => t <= minSep || value <= c[t - 1]);
  const geometric = (series.inverse_coefficients || []).length === 2;
  const known = k === 1 || c.length <= minSep || positive && (normalized
    ? geometric : falls || participation === 'fixed-epoch');
  if (!known) return {reason: 'no theorem here is about its coefficients'};
  const alone = leftmost(c, rounds, minSep, k, normalized);
  return {value: run.clients_per_unit * alone};
}

const near = (first, second, width) =>
  Math.abs(first - second) <= width * Math.abs(second);

// Returns a positive number with a few digits, rounded up.
function rounded(value, digits = 4) {
  if (!(value > 0 && value < Infinity)) return String(value);
  const unit = 10 ** (digits - 1 - Math.floor(Math.log10(value)));
  return String(Number((Math.ceil(value * unit) / unit).toPrecision(digits)));
}

// Returns mu of a claim, from the noise that was added and the sensitivity.
function muOf(check, claim) {
  return Math.hypot(...claim.runs.map(i => {
    const run = check.runs[i], exact = sensitivity(run).value;
    return (1 + run.sensitivity_error) * (exact || run.sensitivity)
      / run.z_stddev_per_clip;
  }));
}

// Returns the largest share of members that an attacker recognises, if the
// attacker calls the share `share` of bystanders members.
function members(mu, share) {
  const quantile = least(x => logPhi(x - 40) >= Math.log(share), 80) - 40;
  return Math.exp(logPhi(quantile + mu));
}

// Returns lines {ok, text, claim}; `ok` is null for a number that was not
// recomputed. An entry of `texts` is [path in `check`, text on the page].
function verdicts(check, texts) {
  const lines = [], rough = check.digits === 3;
  const add = (ok, text, claim) => lines.push({ok, text, claim});
  for (const run of check.runs) {
    const {value, reason} = sensitivity(run);
    const noise = run.z_stddev_per_clip / (value || run.sensitivity);
    const ok = near(run.noise_multiplier, noise, 1e-8)
      && run.sensitivity_error >= 0 && (reason || near(run.sensitivity, value, 1e-8));
    add(!ok ? false : reason ? null : true, `${run.name}: the sensitivity is `
      + (reason ? `as stated, not recomputed: ${reason}`
        : `${rounded(value)}, recomputed from its definition`)
      + (ok ? '' : `; the noise multiplier is ${noise.toPrecision(4)}, and the `
        + `page states ${run.sensitivity} and ${run.noise_multiplier}`));
  }
  check.claims.forEach((claim, i) => {
    const mu = muOf(check, claim), same = 1 - 1e-8;
    const epsilon = epsilonAt(mu, claim.runs.length, claim.delta);
    const ok = claim.epsilon >= epsilon * same
      && claim.rho >= mu * mu / 2 * same;
    add(ok, (i ? `${claim.name}: ` : '') + 'recomputed in your browser'
      + (claim.amplified ? ', without chance' : '')
      + `: epsilon = ${rounded(epsilon, 6)}`
      + (ok ? '' : `; the page states ${claim.epsilon}`), i);
    if (claim.amplified) {
      add(null, `Amplified: ${rounded(claim.amplified)}, not recomputed.`, i);
    }
  });
  for (const [path, text] of texts) {
    const value = path.split('.').reduce((part, key) =>
      key === 'epsilon' && part.amplified || part[key], check);
    const width = rough ? 1e-2 : path.endsWith('rho') ? 1e-3 : 1e-5;
    if (!near(Number(text), value, width)) {
      add(false, `The page says ${text} where its numbers say ${value}.`);
    }
  }
  return lines;
}

// Fills in the elements `check` and `check-...` of form.html.j2.
function show() {
  const at = name => document.getElementById(`check-${name}`);
  const line = (parent, ok, text) => parent.append(Object.assign(
    document.createElement('p'), {textContent: text,
      className: ok === false ? 'warning' : ok ? 'same' : 'dim'}));
  try {
    document.getElementById('check').hidden = false;
    const check = JSON.parse(at('numbers').textContent);
    if (!check) return;
    const texts = [...document.querySelectorAll('[data-check]')].map(
      each => [each.dataset.check, each.textContent.trim()]);
    verdicts(check, texts).forEach(({ok, text, claim}) =>
      line(at(claim === 0 ? 'claim' : 'lines'), ok, text));
    const all = check.claims.reduce((most, claim) =>
      claim.runs.length > most.runs.length ? claim : most);
    const mu = muOf(check, all);
    const move = () => {
      const delta = Number((10 ** -at('delta').value).toPrecision(2));
      const share = Number((10 ** at('share').value).toPrecision(2));
      const epsilon = epsilonAt(mu, all.runs.length, delta);
      const max = rounded(100 * members(mu, share / 100));
      const chance = all.amplified ? 'Without chance: ' : '';
      at('epsilon').textContent = `${chance}At delta ${delta.toExponential()}, `
        + (epsilon < Infinity ? `epsilon = ${rounded(epsilon)}.` : 'no claim.');
      at('members').textContent = chance + 'An attacker who is wrong about a '
        + `bystander in ${share} % of cases finds a member in at most ${max} %.`;
    };
    at('delta').value = -Math.log10(all.delta);
    at('sliders').addEventListener('input', move);
    move();
    at('sliders').hidden = false;
  } catch (error) {
    line(at('lines'), false, `Nothing was recomputed: ${error.message}`);
  }
}

if (typeof document !== 'undefined') {
  document.addEventListener('DOMContentLoaded', show);
}
