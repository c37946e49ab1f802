"use strict"; // for all parts of the worker, which are concatenated into one script

// The search of onnx_reader.py, with a network and a session for each of its two programs.
// Names are those of that file; a state is {name: {dims, data}}, whose first dimension is the hypothesis, or in
// the cache the third one the word.

const SPECIAL = new Set(["<pad>", "<sos>", "<eos>"]);
const PAD = 0, MOST_CELLS = 2 ** 15; // words that are read at once, times feature cells
const LOW = 16, HIGH = 256, WIDE = 1024; // px

class Cancelled extends Error {}

// ---------------------------------------------------------------------------------------------------- images

// Python's round: half to even
function rint(x) {
  const low = Math.floor(x);
  return x - low === 0.5 ? low + (low % 2) : Math.round(x);
}

function atScale(ink, base, scale) {
  const { width, height } = ink;
  const large = height > HIGH || width > WIDE;
  const limit = large ? Math.min(HIGH / height, WIDE / width) : Math.max(LOW / height, LOW / width, 1);
  const factor = base * scale * limit;
  if (factor === 1) return ink;
  const size = [height, width].map((side) => Math.max(1, rint(side * factor)));
  const exact = base * scale === 1;
  const weights = factor < 1 && !exact ? areaWeights : linearWeights;
  const [down, across] = [height, width].map((side, i) => weights(side, size[i], exact ? 1 / factor : side / size[i]));
  const wide = new Float32Array(height * size[1]);
  for (let y = 0; y < height; y++)
    across.forEach((row, x) => { for (const [from, weight] of row) wide[y * size[1] + x] += weight * ink.data[y * width + from]; });
  const data = new Uint8Array(size[0] * size[1]);
  down.forEach((row, y) => {
    for (let x = 0; x < size[1]; x++) {
      let sum = 0;
      for (const [from, weight] of row) sum += weight * wide[from * size[1] + x];
      data[y * size[1] + x] = Math.max(0, Math.min(255, rint(sum)));
    }
  });
  return { data, width: size[1], height: size[0] };
}

// Of each new pixel, the old ones that it is made of, with their weights.
function areaWeights(old, size, step) {
  return Array.from({ length: size }, (_, i) => {
    const start = i * step, row = [];
    for (let from = Math.floor(start); from < Math.min(start + step, old); from++) {
      const overlap = Math.min(start + step, from + 1) - Math.max(start, from);
      if (overlap > 0) row.push([from, overlap / Math.min(step, old - start)]);
    }
    return row;
  });
}

function linearWeights(old, size, step) {
  return Array.from({ length: size }, (_, i) => {
    const center = Math.max(0, Math.min(old - 1, (i + 0.5) * step - 0.5)), from = Math.floor(center);
    return [[from, 1 - center + from], [Math.min(from + 1, old - 1), center - from]];
  });
}

function padded(height, width, coarse) {
  const [cell, stretch] = coarse ? [32, 1.2] : [16, 1.12];
  let wide = 32;
  while (wide < width) {
    const cells = (wide * stretch) / 16;
    wide = Math.max(wide + 16, (coarse ? Math.ceil(cells) : Math.floor(cells)) * 16);
  }
  return [Math.ceil(height / cell) * cell, wide];
}

// The image at every scale, padded as in training: {image, size, shape}.
function views(ink, model) {
  const top = Math.max(...model.scales);
  const largest = atScale(ink, model.scale, top);
  const shape = padded(largest.height, largest.width, model.coarse);
  return model.scales.map((scale) => {
    const view = atScale(ink, model.scale, scale);
    const grid = scale === top ? shape : shape.map((side) => Math.ceil(Math.ceil((side * scale) / top + 1) / 16) * 16);
    const [height, width] = model.grid ? grid : [view.height, view.width];
    const image = new Float32Array(height * width);
    for (let y = 0; y < view.height; y++)
      for (let x = 0; x < view.width; x++) image[y * width + x] = view.data[y * view.width + x] / 255;
    return { image, size: [view.height, view.width], shape: [height, width] };
  });
}

// --------------------------------------------------------------------------------------------------- network

class Decoder {
  constructor(network, check) {
    Object.assign(this, network); // ort, model, encoder, step
    this.check = check; // called before every step; throws Cancelled
  }

  async encode(ink) {
    const { ort, model } = this;
    this.memory = [];
    this.first = [];
    this.known = new Map(); // log-probabilities at every scale, by the words before
    this.cells = 0;
    for (const { image, size, shape } of views(ink, model)) {
      await this.check();
      const values = await this.encoder.run({
        image: new ort.Tensor("float32", image, [1, 1, ...shape]),
        size: new ort.Tensor("int64", BigInt64Array.from(size.map(BigInt)), [2]),
      });
      const cells = { h: Math.ceil(size[0] / model.stride), w: Math.ceil(size[1] / model.stride) };
      this.cells = Math.max(this.cells, cells.h * cells.w);
      this.memory.push(Object.fromEntries(model.memory.map((name) => [name, values[name]])));
      const zeros = (dims) => ({ dims, data: new Float32Array(dims.reduce((a, b) => a * b)) });
      this.first.push(Object.fromEntries(Object.entries(model.state).map(([name, sides]) => (
        [name, sides === null ? values[name] : zeros([1, ...sides.map((side) => cells[side] ?? side)])]
      ))));
      for (const [name, dims] of Object.entries(model.cache)) this.first.at(-1)[name] = zeros(dims);
    }
    return this;
  }

  begin(count, only = Infinity) {
    this.used = Math.min(only, this.memory.length);
    this.state = this.first.slice(0, this.used);
    this.places = [0];
    this.visible = [[]];
    this.keep(new Array(count).fill(0));
  }

  keep(rows) {
    const visible = rows.map((row) => this.visible[row]);
    const used = this.visible[0].map((_, word) => word).filter((word) => visible.some((row) => row[word]));
    this.places = rows.map((row) => this.places[row]);
    this.visible = visible.map((row) => used.map((word) => row[word]));
    this.state = this.state.map((state) => Object.fromEntries(Object.entries(state).map(([name, { dims, data }]) => {
      const cached = name in this.model.cache, chosen = cached ? used : rows;
      const [outer, count, size] = cached ? [dims[0] * dims[1], dims[2], dims[3]] : [1, dims[0], data.length / dims[0]];
      const kept = new Float32Array(outer * chosen.length * size);
      for (let o = 0; o < outer; o++)
        chosen.forEach((row, i) => kept.set(data.subarray((o * count + row) * size, (o * count + row + 1) * size), (o * chosen.length + i) * size));
      return [name, { dims: dims.map((side, axis) => (axis === (cached ? 2 : 0) ? chosen.length : side)), data: kept }];
    })));
  }

  // Log-probabilities of what follows each word, one row for each at every scale; `looked` is of the first. A word
  // continues hypothesis rows[i] and the words that are earlier[rows[i]]; then the hypotheses end with these words.
  async read(words, rows, earlier) {
    await this.check();
    const { ort } = this, N = this.places.length, X = words.length;
    const whole = (values, dims) => new ort.Tensor("int64", BigInt64Array.from(values, BigInt), dims);
    const float = (values, dims) => new ort.Tensor("float32", Float32Array.from(values.flat()), dims);
    const places = this.places.map((place, row) => place + earlier[row].reduce((a, b) => a + b, 0));
    const given = {
      words: whole(words, [X]), rows: whole(rows, [X]), places: whole(places, [N]),
      visible: float(this.visible, [N, this.visible[0].length]), earlier: float(earlier, [N, X]),
    };
    const each = [];
    for (let i = 0; i < this.used; i++) {
      const state = Object.fromEntries(Object.entries(this.state[i]).map(([name, x]) => [name, new ort.Tensor("float32", x.data, x.dims)]));
      const every = { ...given, ...this.memory[i], ...state };
      const values = await this.step.run(Object.fromEntries(this.step.inputNames.map((name) => [name, every[name]])));
      if (i === 0) this.looked = values.looked;
      each.push(values.logp);
      this.state[i] = Object.fromEntries(Object.keys(state).map((name) => [name, values["next_" + name]]));
    }
    this.places = rows.map((row) => places[row] + 1);
    this.visible = rows.map((row, x) => [...this.visible[row], ...words.map((word, y) => Number(word !== PAD && (x === y || earlier[row][y] > 0)))]);
    return words.map((_, x) => each.map(({ data, dims: [, V] }) => data.subarray(x * V, (x + 1) * V)));
  }

  // Log-probabilities of the next word after one more word of hypotheses, given all words.
  async feed(words, rows) {
    const none = this.places.map(() => new Array(words.length).fill(0));
    const logps = await this.read(words.map((row) => row.at(-1)), rows, none);
    words.forEach((row, x) => this.known.set(row.join(), logps[x]));
    return logps.map((each) => each[0].map((value, word) => each.slice(1).reduce((sum, logp) => Math.fround(sum + logp[word]), value) / each.length));
  }
}

// ---------------------------------------------------------------------------------------------------- search

// The highest of sums[row] + logp[row][word], best first: [sum, row, word].
function bestOf(sums, logp, count) {
  const all = [];
  logp.forEach((row, i) => row.forEach((value, word) => all.push([Math.fround(sums[i] + value), i, word])));
  return all.sort((a, b) => b[0] - a[0] || a[1] - b[1] || a[2] - b[2]).slice(0, count);
}

function complete(beam, score, words, most) {
  beam.complete.push({ score, words: words.slice(1) });
  beam.complete.sort((a, b) => b.score - a.score);
  beam.complete.length = Math.min(beam.complete.length, most);
}

function goOn(beam, candidates) {
  beam.words = candidates.map(([, row, word]) => [...beam.words[row], word]);
  beam.sums = candidates.map(([sum]) => sum);
  return candidates.map(([, row]) => row);
}

function extend(beam, logp, length, most, alpha) {
  const candidates = bestOf(beam.sums, logp, 2 * most);
  for (const [sum, row, word] of candidates.slice(0, most))
    if (word === beam.end) complete(beam, sum / length ** alpha, beam.words[row], most);
  const rows = goOn(beam, candidates.filter(([, , word]) => word !== beam.end).slice(0, most));
  const worst = beam.complete.length === most ? beam.complete[most - 1].score : -Infinity;
  beam.open = worst < beam.sums[0] / length ** alpha;
  return rows;
}

function narrow(beam, logp, length, most, alpha) {
  const candidates = bestOf(beam.sums, logp, most - beam.complete.length);
  for (const [sum, row, word] of candidates)
    if (word === beam.end) complete(beam, sum / length ** alpha, beam.words[row], most);
  beam.open = beam.complete.length < most;
  return goOn(beam, candidates.filter(([, , word]) => word !== beam.end));
}

async function search(decoder, rule, alpha, unfinished) {
  const { starts, ends, search: options } = decoder.model, most = options.beam_size;
  const beams = options.directions.map((direction) => (
    { direction, end: ends[direction], words: [[starts[direction]]], sums: [0], complete: [], open: true }
  ));
  decoder.begin(beams.length);
  let running = beams, rows = beams.map((_, row) => row);
  for (let length = 1; length < options.max_len; length++) {
    const logp = await decoder.feed(running.flatMap((beam) => beam.words), rows);
    let first = 0, kept = [];
    for (const beam of running) {
      const count = beam.words.length;
      const parents = rule(beam, logp.slice(first, first + count), length, most, alpha);
      if (beam.open) kept.push(...parents.map((row) => first + row));
      first += count;
    }
    running = running.filter((beam) => beam.open);
    if (!running.length) return beams;
    const parents = [...new Set(kept)]; // what is the same of all that continue one is done once
    rows = kept.map((row) => parents.indexOf(row));
    decoder.keep(parents);
  }
  for (const beam of running)
    if (rule === extend || !beam.complete.length)
      beam.words.slice(0, unfinished).forEach((words, i) => complete(beam, beam.sums[i] / options.max_len ** alpha, words, most));
  return beams;
}

// What the opposite direction gives every complete hypothesis, and by how much the scales differ in it.
async function rescore(decoder, beams, alpha) {
  const { starts } = decoder.model;
  const sequences = beams.flatMap((beam) => beam.complete.map(({ words }) => [beam.end, ...[...words].reverse(), starts[beam.direction]]));
  await readWhole(decoder, sequences);
  const sums = sequences.map((words) => {
    const each = new Array(decoder.used).fill(0);
    words.slice(1).forEach((word, t) => word !== PAD && decoder.known.get(words.slice(0, t + 1).join()).forEach((logp, scale) => { each[scale] += logp[word]; }));
    return each;
  });
  const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
  const found = sums.map((each, i) => ({
    other: mean(each) / (sequences[i].filter((word) => word !== PAD).length - 1) ** alpha,
    spread: Math.sqrt(mean(each.map((value) => (value - mean(each)) ** 2))),
  }));
  return beams.map((beam) => beam.complete.map(() => found.shift()));
}

// Lets all log-probabilities of these sequences be known; several steps are read at once.
async function readWhole(decoder, sequences) {
  const levels = []; // prefixes by length
  for (const words of sequences) {
    const prefixes = words.slice(1).map((_, t) => words.slice(0, t + 1));
    if (prefixes.some((prefix) => !decoder.known.has(prefix.join())))
      prefixes.forEach((prefix, t) => (levels[t] ??= new Map()).set(prefix.join(), prefix));
  }
  let before = new Map([["", 0]]);
  decoder.begin(1);
  while (levels.length) {
    const number = new Map(), words = [], rows = [], earlier = [];
    while (levels.length && (!words.length || (words.length + levels[0].size) * decoder.cells <= MOST_CELLS))
      for (const [key, prefix] of levels.shift()) {
        const parent = prefix.slice(0, -1).join(), inside = number.get(parent);
        rows.push(inside === undefined ? before.get(parent) : rows[inside]);
        earlier.push(inside === undefined ? [] : [...earlier[inside], inside]);
        number.set(key, words.push(prefix.at(-1)) - 1);
      }
    decoder.keep(rows);
    const logps = await decoder.read(words, words.map((_, x) => x), earlier.map((some) => words.map((_, x) => Number(some.includes(x)))));
    for (const [key, x] of number) decoder.known.set(key, logps[x]);
    before = number;
  }
}

// The distinct readings, each with its confidence: the share of readings with this number that are right, by a
// logistic regression on what the search tells of it, as in confidence.py.
function trusted(hypotheses, { confidence: fitted }) {
  const single = hypotheses.every(({ reverse }) => reverse === 0), found = new Map();
  for (const h of hypotheses) found.set(h.ids.join(), [...(found.get(h.ids.join()) ?? []), h]);
  return [...found.values()].map(([h, ...again]) => {
    const rivals = [...found.values()].filter(([other]) => other !== h).map(([other]) => other.logp);
    const evidence = {
      logp: h.logp,
      steps: h.ids.length + 1,
      margin: Math.min(h.logp - Math.max(...rivals), fitted.far),
      apart: single ? 0 : Math.abs(h.forward - h.reverse),
      spread: h.spread,
      both: Number(single || again.some((other) => other.direction !== h.direction)),
    };
    const odds = Object.entries(fitted.weights).reduce((sum, [name, weight]) => sum + weight * evidence[name], fitted.intercept);
    return { ...h, confidence: 1 / (1 + Math.exp(-odds)) };
  });
}

const RULES = { joint: [extend, Infinity], bttr: [narrow, 1], densewap: [narrow, 0] };

// Hypotheses of an image, best first: {tokens, ids, score, confidence}.
async function read(decoder, ink) {
  const { model } = decoder, { rules, alpha } = model.search, [rule, unfinished] = RULES[rules];
  await decoder.encode(ink);
  const beamAlpha = rules === "bttr" ? 0 : alpha;
  const beams = await search(decoder, rule, beamAlpha, unfinished);
  const reverse = beams.length === 2 ? await rescore(decoder, beams, beamAlpha) : beams.map((beam) => beam.complete.map(() => ({ other: 0, spread: 0 })));
  const found = beams.flatMap((beam, b) => beam.complete.map(({ score, words }, i) => {
    const ids = beam.direction === "r2l" ? [...words].reverse() : words;
    const by = rules === "bttr" ? Math.max(ids.length, 1) ** alpha : 1, { other, spread } = reverse[b][i];
    const length = rules === "bttr" ? 1 : (ids.length + 1) ** alpha;
    return {
      ids,
      tokens: ids.map((id) => model.words[id + model.offset]),
      score: (score + other) / by,
      direction: beam.direction,
      forward: score * length,
      reverse: other * length,
      logp: ((score + other) * length) / (other ? 2 : 1),
      spread,
    };
  })).sort((a, b) => b.score - a.score);
  const distinct = trusted(found, model);
  const first = model.search.convertible ? distinct.find((h) => isComplete(h.tokens)) : distinct[0];
  return first ? [first, ...distinct.filter((h) => h !== first)] : distinct;
}

// Where the network looks at each step while it reads these words left to right: {h, w, maps}, the last is the end.
async function look(decoder, ids) {
  const words = [decoder.model.starts.l2r, ...ids], maps = [];
  decoder.begin(1, 1);
  for (const word of words) {
    await decoder.read([word], [0], [[0]]);
    maps.push(Float32Array.from(decoder.looked.data));
  }
  const [, h, w] = decoder.looked.dims;
  return { h, w, maps };
}
