/* The difference of two runs over some questions, as raypipe.metrics.paired computes it: p exact where all
   differences are whole numbers. Draws take a seed of their own, so ends of intervals differ from Python's in
   the third decimal. */

const DRAWS = 10000; // of signs, and of means: a p of .05 then repeats to .004

/* Uniform numbers in 0..1, the same for each page (mulberry32). */
function seeded(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

/* Gamma of shape a (Marsaglia and Tsang 2000). */
function gamma(a, random) {
  if (a < 1) return gamma(a + 1, random) * Math.pow(random() || 1e-12, 1 / a);
  const d = a - 1 / 3, c = 1 / Math.sqrt(9 * d);
  for (;;) {
    const x = Math.sqrt(-2 * Math.log(random() || 1e-12)) * Math.cos(2 * Math.PI * random()), v = (1 + c * x) ** 3;
    if (v > 0 && Math.log(random() || 1e-12) < 0.5 * x * x + d - d * v + d * Math.log(v)) return d * v;
  }
}

/* Two-sided p of the sum of differences whose signs are as likely + as -, and whether it is exact. */
function signFlip(differences) {
  const sizes = differences.filter(d => d).map(Math.abs), found = Math.abs(differences.reduce((a, b) => a + b, 0));
  if (!sizes.length) return { p: 1, exact: true };
  if (sizes.every(Number.isInteger)) return { p: exactly(sizes, found), exact: true };
  const random = seeded(1);
  let far = 0;
  for (let i = 0; i < DRAWS; i++) {
    let sum = 0;
    for (const size of sizes) sum += random() < 0.5 ? size : -size;
    if (Math.abs(sum) >= found * (1 - 1e-9)) far++;
  }
  return { p: (far + 1) / (DRAWS + 1), exact: false };
}

function exactly(sizes, found) {
  const logs = [0];
  for (let i = 1; i <= sizes.length; i++) logs.push(logs[i - 1] + Math.log(i));
  let chances = [1]; // of each sum, from the least to the largest, one apart
  for (const size of new Set(sizes)) {
    const n = sizes.filter(s => s === size).length, wider = new Array(chances.length + 2 * size * n).fill(0);
    for (let k = 0; k <= n; k++) {
      const chance = Math.exp(logs[n] - logs[k] - logs[n - k] - n * Math.LN2);
      chances.forEach((c, i) => { wider[i + 2 * size * k] += c * chance; });
    }
    chances = wider;
  }
  const middle = (chances.length - 1) / 2;
  return Math.min(1, chances.reduce((sum, c, i) => Math.abs(i - middle) >= found ? sum + c : sum, 0));
}

/* 95 % interval of the mean of differences between -span and span: Dirichlet(1/2) on the counts of whole
   numbers; of others with half a question at either end, and from 300 on a bootstrap. */
function meanInterval(differences, span) {
  const counts = new Map(), random = seeded(2), mean = differences.reduce((a, b) => a + b, 0) / differences.length;
  const whole = differences.every(Number.isInteger) && span <= 4, prior = whole || differences.length < 300 ? 0.5 : 0;
  if (whole) for (let v = -span; v <= span; v++) counts.set(v, prior);
  else if (prior) { counts.set(-span, prior); counts.set(span, prior); }
  for (const d of differences) counts.set(d, (counts.get(d) || 0) + 1);
  const values = [...counts.keys()], weights = [...counts.values()], drawn = new Float64Array(whole ? DRAWS : 2000);
  for (let i = 0; i < drawn.length; i++) {
    let sum = 0, all = 0;
    for (let k = 0; k < values.length; k++) { const g = gamma(weights[k], random); sum += g * values[k]; all += g; }
    drawn[i] = sum / all;
  }
  drawn.sort();
  const end = q => drawn[Math.round(q * (drawn.length - 1))];
  return [Math.min(end(0.025), mean), Math.max(end(0.975), mean)];
}

function paired(before, after, span) {
  const d = after.map((v, i) => v - before[i]), mean = of => of.reduce((a, b) => a + b, 0) / of.length;
  return {
    n: d.length, before: mean(before), after: mean(after), difference: mean(d),
    up: d.filter(x => x > 0).length, down: d.filter(x => x < 0).length, interval: meanInterval(d, span), ...signFlip(d),
  };
}
