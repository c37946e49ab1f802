// The page: draws strokes, shows what the worker reads. Texts become text nodes; only MathML that this page made itself
// is parsed as markup.

const $ = (id) => document.getElementById(id);
const pad = $("pad"), pen = pad.getContext("2d");
let strokes = [], undone = [], erasing = false, picture = null; // picture: ink, in place of strokes
let pointer = null, drawing = null; // pointer: how the one went down that draws; others, as of a palm, are ignored
let worker = null, ready = false, number = 0, timer = 0, best = null, shownInk = null;

// --------------------------------------------------------------------------------------------------- drawing

function redraw() {
  const ratio = window.devicePixelRatio || 1, { width, height } = pad.getBoundingClientRect();
  pad.width = Math.round(width * ratio);
  pad.height = Math.round(height * ratio);
  pen.scale(ratio, ratio);
  pen.lineWidth = 3;
  pen.lineCap = pen.lineJoin = "round";
  pen.strokeStyle = "#111";
  if (picture) {
    const scale = Math.min(1, width / picture.width, height / picture.height), small = canvasOf(picture, [17, 17, 17], [255, 255, 255]);
    pen.drawImage(small, (width - picture.width * scale) / 2, (height - picture.height * scale) / 2, picture.width * scale, picture.height * scale);
  }
  for (const stroke of drawing ? [...strokes, drawing] : strokes) {
    pen.beginPath();
    pen.moveTo(...stroke[0]);
    for (const point of stroke.length > 1 ? stroke.slice(1) : [[stroke[0][0] + 0.1, stroke[0][1]]]) pen.lineTo(...point);
    pen.stroke();
  }
}

const place = (event) => {
  const box = pad.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
};

pad.addEventListener("pointerdown", (event) => {
  const eraser = event.button === 5; // the other end of a pen
  if (event.button > 0 && !eraser) return;
  if (pointer && (pointer.pointerType === "pen" || event.pointerType !== "pen")) return; // a pen goes before a palm
  pad.setPointerCapture(event.pointerId);
  pointer = event;
  drawing = null;
  if (erasing || eraser) return eraseAt(place(event));
  if (picture) change(() => { picture = null; });
  drawing = [place(event)];
  redraw();
});
pad.addEventListener("pointermove", (event) => {
  if (event.pointerId !== pointer?.pointerId) return;
  if (!drawing) return eraseAt(place(event));
  for (const each of event.getCoalescedEvents?.() ?? [event]) drawing.push(place(each));
  redraw();
});
for (const kind of ["pointerup", "pointercancel"]) pad.addEventListener(kind, (event) => {
  if (event.pointerId !== pointer?.pointerId) return;
  pointer = null;
  if (!drawing) return;
  const stroke = drawing;
  drawing = null;
  change(() => strokes.push(stroke));
});

function eraseAt([x, y]) {
  const near = (stroke) => stroke.some(([u, v], i) => { // the line that ends there
    const [p, q] = stroke[Math.max(i - 1, 0)], along = (x - p) * (u - p) + (y - q) * (v - q);
    const share = Math.max(0, Math.min(1, along / ((u - p) ** 2 + (v - q) ** 2 || 1)));
    return Math.hypot(p + share * (u - p) - x, q + share * (v - q) - y) < 12;
  });
  const left = strokes.filter((stroke) => !near(stroke));
  if (left.length < strokes.length) change(() => { strokes = left; });
}

// Every change can be undone; a reading follows when the pen rests.
function change(make) {
  undone.push({ strokes: [...strokes], picture });
  make();
  redraw();
  readSoon();
}

function undo() {
  const before = undone.pop();
  if (!before) return;
  ({ strokes, picture } = before);
  redraw();
  readSoon();
}

function setErasing(value) {
  erasing = value;
  $("erase").setAttribute("aria-pressed", String(value));
}

const clear = () => (strokes.length || picture ? change(() => { strokes = []; picture = null; }) : readSoon());
$("undo").addEventListener("click", undo);
$("erase").addEventListener("click", () => setErasing(!erasing));
$("clear").addEventListener("click", clear);
document.addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && !event.shiftKey && event.key.toLowerCase() === "z") { event.preventDefault(); undo(); }
  else if (event.ctrlKey || event.metaKey || event.altKey) return;
  else if (event.key === "Delete" || event.key === "Escape") clear();
  else if (event.key.toLowerCase() === "e" && event.target === pad) setErasing(!erasing);
});
new ResizeObserver(redraw).observe(pad);

// -------------------------------------------------------------------------------------------------- pictures

async function open(file) {
  if (!file) return say("there was no picture in it; give a PNG or JPEG file", "failed");
  let bitmap;
  try {
    if (file.type && !file.type.startsWith("image/")) throw new Unreadable("it is no picture");
    bitmap = await createImageBitmap(file, { imageOrientation: "from-image" });
  } catch {
    return say(`${file.name || "the file"} is not a picture that this browser can read; give a PNG or JPEG file`, "failed");
  }
  try {
    const { width, height } = bitmap;
    if (Math.max(width, height) > MAX_SIDE) throw new Unreadable(`${width} × ${height} pixels are too many (at most ${MAX_SIDE} a side); scale it down`);
    if (Math.max(width, height) > 100 * Math.min(width, height)) throw new Unreadable("it is too long and thin for an expression; cut one out again");
    const drawn = width * height <= MAX_AREA ? asItIs(pixelsOf(bitmap, 1)) : null;
    const ink = drawn ?? inkOfPicture(pixelsOf(bitmap, Math.min(1, WORKING_SIDE / Math.max(width, height))));
    change(() => { strokes = []; picture = ink; });
  } catch (error) {
    say(`${file.name || "the picture"}: ${error.message}`, "failed");
  } finally {
    bitmap.close();
  }
}

function pixelsOf(bitmap, scale) {
  const [width, height] = [bitmap.width, bitmap.height].map((side) => Math.max(1, Math.round(side * scale)));
  const context = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, width, height);
  return context.getImageData(0, 0, width, height);
}

// A picture drawn as CROHME's are, which is read as it is: binary, white on black, with its margins.
function asItIs({ width, height, data }) {
  const image = mask(width, height);
  for (let i = 0; i < image.data.length; i++) {
    if (data[4 * i] !== data[4 * i + 1] || data[4 * i] !== data[4 * i + 2] || data[4 * i] % 255 || data[4 * i + 3] < 255) return null;
    image.data[i] = data[4 * i];
  }
  if (!image.data.some(Boolean)) return null;
  const same = cropped(image);
  return same.width === width && same.height === height && same.data.every((value, i) => value === image.data[i]) ? same : null;
}

$("file").addEventListener("change", ({ target }) => { open(target.files[0]); target.value = ""; });
document.addEventListener("paste", (event) => {
  const file = [...(event.clipboardData?.files ?? [])][0];
  if (file) { event.preventDefault(); open(file); }
});
for (const kind of ["dragover", "dragleave", "drop"]) document.addEventListener(kind, (event) => {
  event.preventDefault();
  $("sheet").classList.toggle("over", kind === "dragover");
  if (kind === "drop") open([...event.dataTransfer.files][0]);
});

// -------------------------------------------------------------------------------------------------- readings

function say(text, kind = "") {
  $("said").textContent = text;
  $("status").className = kind;
}

function readSoon() {
  clearTimeout(timer);
  if (ready) timer = setTimeout(readNow, 250);
}

function readNow() {
  number++;
  if (!strokes.length && !picture) return show(null);
  try {
    shownInk = picture ?? inkOfStrokes(strokes);
  } catch (error) {
    return say(error.message, "failed");
  }
  say("reading …");
  worker.postMessage({ kind: "read", id: number, ink: shownInk });
}

const percent = (share) => (share < 0.005 ? "< 1 %" : `${Math.round(100 * share)} %`);

function show(found) {
  best = found?.nbest[0] ?? null;
  $("latex").textContent = best ? best.tokens.join(" ") : "";
  $("math").innerHTML = best?.complete ? toMathML(best.tokens) : "";
  $("copy-latex").disabled = !best;
  $("copy-mathml").disabled = !best?.complete;
  $("shown").hidden = $("others").hidden = !best;
  $("tokens").replaceChildren();
  $("nbest").replaceChildren(...(found?.nbest ?? []).slice(1).map(({ tokens, confidence }) => {
    const item = document.createElement("li"), sure = document.createElement("b");
    sure.textContent = ` ${percent(confidence)}`;
    item.append(tokens.join(" "), sure);
    return item;
  }));
  if (!found) return say("ready: draw a formula");
  if (!best) return say("nothing that ends was found; is it one expression?", "failed");
  const took = `${found.seconds.toFixed(2)} s`;
  if (!found.final) say("reading …");
  else say(found.doubtful ? `doubtful: ${percent(best.confidence)} likely right; is it one expression?` : `${percent(best.confidence)} likely right, ${took}`, found.doubtful ? "doubtful" : "");
  const canvas = $("ink");
  [canvas.width, canvas.height] = [shownInk.width, shownInk.height];
  canvas.style.width = `${2 * shownInk.width}px`; // so that attention to single strokes is seen
  canvas.getContext("2d").drawImage(canvasOf(shownInk, [255, 255, 255], [0, 0, 0]), 0, 0);
  [$("heat").width, $("heat").height] = [shownInk.width, shownInk.height];
}

function canvasOf({ width, height, data }, ink, paper) {
  const canvas = new OffscreenCanvas(width, height), pixels = new ImageData(width, height);
  data.forEach((value, i) => pixels.data.set([...(value ? ink : paper), 255], 4 * i));
  canvas.getContext("2d").putImageData(pixels, 0, 0);
  return canvas;
}

function showLooks({ h, w, maps, cell }) {
  const heat = $("heat"), brush = heat.getContext("2d");
  const light = (map) => {
    brush.clearRect(0, 0, heat.width, heat.height);
    if (!map) return;
    const small = new OffscreenCanvas(w, h), pixels = new ImageData(w, h), most = Math.max(...map);
    map.forEach((value, i) => pixels.data.set([255, 110, 0, (220 * value) / most], 4 * i));
    small.getContext("2d").putImageData(pixels, 0, 0);
    brush.drawImage(small, 0, 0, w * cell, h * cell);
  };
  $("tokens").replaceChildren(...best.tokens.map((token, i) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = token;
    button.addEventListener("click", () => light(maps[i]));
    button.addEventListener("focus", () => light(maps[i]));
    button.addEventListener("pointerenter", () => light(maps[i]));
    button.addEventListener("pointerleave", () => light(null));
    button.addEventListener("blur", () => light(null));
    return button;
  }));
}

async function copy(text, what) {
  let done = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch { // not from a file:// page of some browsers
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    done = document.execCommand("copy");
    area.remove();
  }
  const [reading] = $("said").textContent.split(" – "); // and its doubt
  $("said").textContent = `${reading} – ${what} ${done ? "copied" : "not copied: the browser refused"}`;
}
$("copy-latex").addEventListener("click", () => copy(best.tokens.join(" "), "LaTeX"));
$("copy-mathml").addEventListener("click", () => copy(toMathML(best.tokens), "MathML"));

// ---------------------------------------------------------------------------------------------------- start

function broken(text) {
  $("progress").hidden = true;
  say(text, "failed");
}

function load() {
  if (typeof WebAssembly !== "object" || typeof Worker !== "function" || typeof DecompressionStream !== "function")
    return broken("this browser cannot run the network (no WebAssembly); use a current one");
  const data = (id) => $(`data-${id}`).textContent.trim();
  worker = new Worker(URL.createObjectURL(new Blob([data("worker")], { type: "text/javascript" })));
  worker.onerror = () => broken("the network in this page is damaged; make the page again");
  worker.onmessage = ({ data: message }) => {
    if (message.kind === "progress") { $("progress").value = message.share; say(message.what); }
    if (message.kind === "damaged") broken(`the network in this page is damaged (${message.reason}); make the page again`);
    if (message.kind === "ready") { ready = true; $("progress").hidden = true; readNow(); }
    if (message.id !== number) return;
    if (message.kind === "read") show(message);
    if (message.kind === "looked") showLooks(message);
    if (message.kind === "failed") say(`it could not be read (${message.reason})`, "failed");
  };
  worker.postMessage({ kind: "start", ...Object.fromEntries(["runtime", "wasm", "encoder", "step", "model"].map((id) => [id, data(id)])) });
}

load();
