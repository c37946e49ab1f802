// From strokes or a picture to ink as CROHME renders it: white on black, strokes 3 px wide, a margin of 12 px, symbols
// about 37 px high. Numbers and steps are those of data/ink.py, data/pictures.py and data/normalize_image.py; a picture is
// prepared more simply than there: nothing around the paper is cut off, and WORKING_SIDE is half of theirs.

const PEN = 3, MARGIN = 12, TYPICAL = 37.3, TYPICAL_LOW = 28, TYPICAL_HIGH = 50; // px
const MAX_SIDES = { height: 230, width: 1000 }; // px, of the ink
const MAX_AREA = 320000; // px, of a picture that is read as it is
const WORKING_SIDE = 1000, MAX_SIDE = 10000; // px; larger pictures are shrunk; sides above the latter are refused

class Unreadable extends Error {}

const mask = (width, height) => ({ width, height, data: new Uint8Array(width * height) });

// ------------------------------------------------------------------------------------------------- measures

// Boxes of the connected parts of a mask, with their areas; 8 neighbors.
function components({ width, height, data }) {
  const label = new Int32Array(data.length).fill(-1), found = [], stack = [];
  for (let start = 0; start < data.length; start++) {
    if (!data[start] || label[start] >= 0) continue;
    const box = { left: width, right: 0, top: height, bottom: 0, area: 0 };
    label[start] = found.length;
    stack.push(start);
    while (stack.length) {
      const at = stack.pop(), x = at % width, y = (at - x) / width;
      box.left = Math.min(box.left, x); box.right = Math.max(box.right, x);
      box.top = Math.min(box.top, y); box.bottom = Math.max(box.bottom, y);
      box.area++;
      for (let v = Math.max(0, y - 1); v <= Math.min(height - 1, y + 1); v++)
        for (let u = Math.max(0, x - 1); u <= Math.min(width - 1, x + 1); u++) {
          const near = v * width + u;
          if (data[near] && label[near] < 0) { label[near] = found.length; stack.push(near); }
        }
    }
    found.push({ ...box, width: box.right - box.left + 1, height: box.bottom - box.top + 1 });
  }
  return { found, label };
}

// Mean height of the parts, weighted by height; null if there are only bars and dots.
function symbolHeight(boxes, stroke) {
  if (boxes.every((b) => b.height < b.width / 2 || Math.max(b.height, b.width) < 2.5 * stroke)) return null;
  return boxes.reduce((sum, b) => sum + b.height ** 2, 0) / boxes.reduce((sum, b) => sum + b.height, 0);
}

function factorFor(typical, stroke) {
  if (typical === null || typical <= stroke) return PEN / stroke;
  return typical >= TYPICAL_LOW && typical <= TYPICAL_HIGH ? 1 : (TYPICAL - PEN) / (typical - stroke);
}

// ------------------------------------------------------------------------------------------------ rendering

// Strokes, lists of [x, y], at a scale: {data: 0 or 255, width, height}.
function render(strokes, scale) {
  const points = strokes.flat(), [xs, ys] = [0, 1].map((axis) => points.map((point) => point[axis]));
  const low = [min(xs), min(ys)], extent = [Math.max(max(xs) - low[0], 1e-9), Math.max(max(ys) - low[1], 1e-9)];
  scale = Math.min(scale, MAX_SIDES.height / extent[1], MAX_SIDES.width / extent[0]);
  const [width, height] = extent.map((side) => rint(side * scale) + 2 * MARGIN + 2), thin = mask(width, height);
  for (const stroke of strokes) {
    const placed = stroke.map((point) => point.map((value, axis) => rint((value - low[axis]) * scale + MARGIN + 1)));
    placed.forEach((to, i) => line(thin, placed[Math.max(i - 1, 0)], to));
  }
  return cropped(dilated(thin));
}

const min = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);
const max = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity);

// Half to even, as numpy rounds.
function rint(x) {
  const low = Math.floor(x);
  return x - low === 0.5 ? low + (low % 2) : Math.round(x);
}

function line(image, [x0, y0], [x1, y1]) {
  const steps = Math.max(Math.abs(x1 - x0), Math.abs(y1 - y0), 1);
  for (let i = 0; i <= steps; i++) {
    const x = Math.round(x0 + ((x1 - x0) * i) / steps), y = Math.round(y0 + ((y1 - y0) * i) / steps);
    if (x >= 0 && y >= 0 && x < image.width && y < image.height) image.data[y * image.width + x] = 1;
  }
}

function dilated({ width, height, data }) {
  const wide = mask(width, height);
  for (let y = 0; y < height; y++)
    for (let x = 0; x < width; x++)
      if (data[y * width + x])
        for (let v = Math.max(0, y - 1); v <= Math.min(height - 1, y + 1); v++)
          wide.data.fill(1, v * width + Math.max(0, x - 1), v * width + Math.min(width, x + 2));
  return wide;
}

// The ink with CROHME's margins, which has one row less below and to the right; 255 on 0.
function cropped({ width, height, data }) {
  const xs = [], ys = [];
  for (let i = 0; i < data.length; i++) if (data[i]) { xs.push(i % width); ys.push(Math.floor(i / width)); }
  if (!xs.length) throw new Unreadable("there is no ink on it");
  const left = min(xs), top = min(ys);
  const image = mask(max(xs) - left + 2 * MARGIN, max(ys) - top + 2 * MARGIN);
  xs.forEach((x, i) => { image.data[(ys[i] - top + MARGIN) * image.width + x - left + MARGIN] = 255; });
  return image;
}

// Strokes as the network expects them, whatever the size in which they were drawn.
function inkOfStrokes(strokes) {
  const drawn = strokes.filter((stroke) => stroke.length);
  if (!drawn.length) throw new Unreadable("there is no ink on it");
  const first = render(drawn, 1), { found } = components(first);
  const points = drawn.flat(), high = max(points.map((p) => p[1])) - min(points.map((p) => p[1]));
  const used = Math.min(1, MAX_SIDES.height / Math.max(high, 1e-9));
  return render(drawn, used * factorFor(symbolHeight(found, PEN), PEN));
}

// ------------------------------------------------------------------------------------------------- pictures

// Ink of a picture, an ImageData: paper lit unevenly, dark ink on light paper or the reverse.
function inkOfPicture({ width, height, data }) {
  const gray = new Float32Array(width * height), alpha = gray.map((_, i) => data[4 * i + 3] / 255);
  const opaque = gray.map((_, i) => 0.299 * data[4 * i] + 0.587 * data[4 * i + 1] + 0.114 * data[4 * i + 2]);
  // Behind bright ink on transparency is black, behind anything else white.
  const few = alpha.filter((value) => value > 0.5).length <= gray.length / 2;
  const behind = few && opaque.reduce((sum, value, i) => sum + (value - 127) * alpha[i], 0) > 0 ? 0 : 255;
  opaque.forEach((value, i) => { gray[i] = behind + (value - behind) * alpha[i]; });
  const paper = paperOf(gray, width, height);
  const difference = gray.map((value, i) => value - paper[i]);
  const dark = difference.reduce((sum, value) => sum + value ** 3, 0) < 0;
  const contrast = difference.map((value, i) => {
    const room = Math.max(dark ? paper[i] : 255 - paper[i], 32);
    return Math.max(0, Math.min(1, (dark ? -value : value) / room));
  });
  const threshold = otsu(contrast), ink = mask(width, height);
  let [inside, outside, count] = [0, 0, 0];
  contrast.forEach((value, i) => {
    if (value > threshold) { ink.data[i] = 1; inside += value; count++; } else outside += value;
  });
  const noise = 1.48 * median(difference.map(Math.abs));
  const gap = count && count < ink.data.length / 2 ? inside / count - outside / (ink.data.length - count) : 0;
  const room = Math.max(32, median(dark ? paper : paper.map((value) => 255 - value))); // if little, noise has contrast
  if (gap < Math.max(0.08, (5 * noise) / 255, (2 * noise) / room)) throw new Unreadable("no ink stands out from the paper; give a sharper or closer picture");
  return redrawn(ink);
}

// The median brightness around every pixel, on a grid that is filled in linearly.
function paperOf(gray, width, height) {
  const reach = Math.max(31, Math.floor(Math.max(width, height) / 8)), step = Math.max(1, reach >> 2);
  const [columns, rows] = [Math.ceil(width / step) + 1, Math.ceil(height / step) + 1], grid = new Float32Array(columns * rows);
  const thin = Math.max(1, reach >> 4);
  for (let r = 0; r < rows; r++)
    for (let c = 0; c < columns; c++) {
      const near = [];
      for (let y = Math.max(0, r * step - reach); y < Math.min(height, r * step + reach); y += thin)
        for (let x = Math.max(0, c * step - reach); x < Math.min(width, c * step + reach); x += thin) near.push(gray[y * width + x]);
      grid[r * columns + c] = median(near);
    }
  return gray.map((_, i) => {
    const x = (i % width) / step, y = Math.floor(i / width) / step, c = Math.floor(x), r = Math.floor(y), u = x - c, v = y - r;
    const at = (row, column) => grid[row * columns + column];
    return (at(r, c) * (1 - u) + at(r, c + 1) * u) * (1 - v) + (at(r + 1, c) * (1 - u) + at(r + 1, c + 1) * u) * v;
  });
}

function median(values) {
  const sorted = Float32Array.from(values).sort();
  return sorted.length ? sorted[sorted.length >> 1] : 0;
}

function otsu(contrast) {
  const counts = new Float64Array(256);
  contrast.forEach((value) => counts[Math.floor(value * 255)]++);
  const total = contrast.length, sum = counts.reduce((s, count, i) => s + i * count, 0);
  let [best, at, below, belowSum] = [-1, 0, 0, 0];
  counts.forEach((count, i) => {
    below += count;
    belowSum += i * count;
    const above = total - below;
    if (!below || !above) return;
    const between = below * above * (belowSum / below - (sum - belowSum) / above) ** 2;
    if (between > best) [best, at] = [between, i];
  });
  return (at + 1) / 255;
}

// A mask without specks, scaled to CROHME's symbols and drawn again along its skeleton.
function redrawn(ink) {
  const stroke = strokeWidth(ink), { found, label } = components(ink);
  const least = Math.min(Math.max(3, stroke ** 2 / 4), max(found.map((box) => box.area)));
  const kept = found.filter((box) => box.area >= least);
  label.forEach((part, i) => { if (part >= 0 && found[part].area < least) ink.data[i] = 0; });
  const high = max(kept.map((b) => b.bottom)) - min(kept.map((b) => b.top)) + 1;
  const wide = max(kept.map((b) => b.right)) - min(kept.map((b) => b.left)) + 1;
  const factor = Math.min(factorFor(symbolHeight(kept, stroke), stroke), MAX_SIDES.height / high, MAX_SIDES.width / wide);
  if (factor === 1 && stroke > PEN - 0.5 && stroke < PEN + 1) return cropped(ink);
  const thin = thinned(ink), small = mask(Math.ceil(ink.width * factor) + 3, Math.ceil(ink.height * factor) + 3);
  thin.data.forEach((value, i) => {
    if (!value) return;
    const x = i % ink.width, y = Math.floor(i / ink.width), at = (u, v) => [Math.round(u * factor) + 1, Math.round(v * factor) + 1];
    line(small, at(x, y), at(x, y));
    for (const [u, v] of [[1, 0], [0, 1], [1, 1], [-1, 1]]) // to the neighbors, where the skeleton is drawn larger
      if (x + u >= 0 && x + u < ink.width && y + v < ink.height && thin.data[(y + v) * ink.width + x + u]) line(small, at(x, y), at(x + u, y + v));
  });
  return cropped(dilated(small));
}

// Mean width of strokes from the mean distance of ink to paper (chamfer 3-4): w = 4 d - 2 - 1 / w.
function strokeWidth({ width, height, data }) {
  const w = width + 2, distance = new Float32Array(w * (height + 2));
  for (let y = 0; y < height; y++) for (let x = 0; x < width; x++) if (data[y * width + x]) distance[(y + 1) * w + x + 1] = 1e6;
  const sweep = (at, offsets) => offsets.forEach(([offset, cost]) => { distance[at] = Math.min(distance[at], distance[at + offset] + cost); });
  for (let at = w + 1; at < distance.length - w - 1; at++)
    if (distance[at]) sweep(at, [[-1, 1], [-w, 1], [-w - 1, 1.4], [-w + 1, 1.4]]);
  let [sum, count] = [0, 0];
  for (let at = distance.length - w - 2; at > w; at--)
    if (distance[at]) { sweep(at, [[1, 1], [w, 1], [w + 1, 1.4], [w - 1, 1.4]]); sum += distance[at]; count++; }
  return Math.max(1, (4 * sum) / count - 2.33);
}

// Rosenfeld's thinning, which takes away one side of the ink at a time.
function thinned({ width, height, data }) {
  const w = width + 2, image = new Uint8Array(w * (height + 2));
  for (let y = 0; y < height; y++) image.set(data.subarray(y * width, (y + 1) * width), (y + 1) * w + 1);
  const ring = [-w, -w + 1, 1, w + 1, w, w - 1, -1, -w - 1], removable = new Uint8Array(256);
  for (let code = 0; code < 256; code++) {
    const bit = (i) => (code >> (i % 8)) & 1;
    let [branches, count] = [0, 0];
    for (let i = 0; i < 8; i++) { count += bit(i); if (i % 2 === 0 && !bit(i) && (bit(i + 1) || bit(i + 2))) branches++; }
    removable[code] = branches === 1 && count >= 3;
  }
  let inked = [];
  image.forEach((value, at) => { if (value) inked.push(at); });
  for (let changed = true; changed;) {
    changed = false;
    for (const side of [0, 4, 2, 6]) {
      const gone = inked.filter((at) => {
        if (image[at + ring[side]]) return false;
        let code = 0;
        for (let i = 0; i < 8; i++) code |= image[at + ring[i]] << i;
        return removable[code];
      });
      gone.forEach((at) => { image[at] = 0; });
      if (gone.length) { changed = true; inked = inked.filter((at) => image[at]); }
    }
  }
  const result = mask(width, height);
  for (let y = 0; y < height; y++) result.data.set(image.subarray((y + 1) * w + 1, (y + 1) * w + 1 + width), y * width);
  return result;
}
