// Attention playback: a slider over the steps of a prediction, and the map of each step drawn over the image.
const STEP = 450; // ms between steps of the playback
const PLAY = "▶ play";
const HEAT = { attention: [255, 110, 0], refinement: [0, 120, 255] };

function player(row, entry, attention, element) {
  const kinds = Object.keys(attention.maps);
  const steps = attention.maps.attention.length;
  const output = make("output", {}, "");
  const slider = make("input", { type: "range", min: 0, max: steps, value: 0, "aria-label": "step" });
  const kind = make("select", { "aria-label": "map" }, ...kinds.map((name) => make("option", {}, name)));
  const button = make("button", { type: "button", class: "play" }, PLAY);
  const control = { steps, button, at: () => Number(slider.value), show };

  function show(step) {
    slider.value = step;
    heat(attention, kind.value, step - 1);
    $("detail").querySelectorAll(".now").forEach((highlighted) => highlighted.classList.remove("now"));
    const token = element.tokens[step - 1];
    const symbol = entry.symbols ? entry.symbols[step - 1] : -1;
    if (token) token.classList.add("now");
    if (element.symbols && element.symbols[symbol]) element.symbols[symbol].classList.add("now");
    output.textContent = step ? `${step} of ${steps}: ${token ? token.textContent : "end"}` : "";
  }

  for (const input of [slider, kind]) input.addEventListener("input", () => (stop(), show(control.at())));
  button.addEventListener("click", () => (state.playing === control ? stop() : play(control)));
  element.control = control;
  return make("div", { class: "player", role: "group", "aria-label": "attention playback" }, button, kind, slider, output);
}

// Draws the map of one step over the image, aligned at the upper left corner; its last cells may extend beyond.
function heat(attention, kind, step) {
  const canvas = $("heat");
  const image = canvas && canvas.previousSibling;
  if (!image || !image.naturalWidth) return;
  [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
  if (step < 0) return;
  const { rows, columns, cell } = attention;
  const small = new OffscreenCanvas(columns, rows);
  const pixels = new ImageData(columns, rows);
  bytes(attention.maps[kind][step]).forEach((value, index) => pixels.data.set([...HEAT[kind], value * 0.85], 4 * index));
  small.getContext("2d").putImageData(pixels, 0, 0);
  canvas.getContext("2d").drawImage(small, 0, 0, columns * cell[1], rows * cell[0]);
}

function play(control) {
  stop();
  state.playing = control;
  control.button.textContent = "❚❚ stop";
  if (control.at() >= control.steps) control.show(0);
  state.timer = setInterval(() => {
    control.show(control.at() + 1);
    if (control.at() >= control.steps) stop();
  }, STEP);
}

function stop() {
  clearInterval(state.timer);
  if (state.playing) state.playing.button.textContent = PLAY;
  state.playing = null;
}

function stepAttention(by) {
  const card = [...$("detail").children].find((child) => child.control);
  if (!card) return;
  stop();
  card.control.show(Math.min(card.control.steps, Math.max(0, card.control.at() + by)));
}

function toggleAttention() {
  const button = $("detail").querySelector(".play");
  if (button) button.click();
}
