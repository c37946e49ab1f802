// The worker of the page: unpacks the runtime and the network, then reads one drawing after the other; a newer one
// cancels what is being read.

let network = null, latest = 0;

const tell = (message) => self.postMessage(message);
const pause = () => new Promise((resolve) => {
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = () => (port1.close(), resolve());
  port2.postMessage(0);
});

async function unpacked(base64) {
  const bytes = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function start({ runtime, wasm, encoder, step, model }) {
  tell({ kind: "progress", share: 0.1, what: "unpacking the runtime" });
  const code = await unpacked(runtime);
  const url = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
  const ort = await import(url);
  ort.env.wasm.wasmBinary = (await unpacked(wasm)).buffer;
  ort.env.wasm.numThreads = 1;
  ort.env.logLevel = "error";
  const sessions = {};
  for (const [name, file, share] of [["encoder", encoder, 0.4], ["step", step, 0.7]]) {
    tell({ kind: "progress", share, what: `unpacking the network (${name})` });
    sessions[name] = await ort.InferenceSession.create(await unpacked(file), { executionProviders: ["wasm"] });
  }
  network = { ort, model: JSON.parse(new TextDecoder().decode(await unpacked(model))), ...sessions };
  tell({ kind: "progress", share: 0.9, what: "warming up" });
  const ink = { width: 90, height: 60, data: new Uint8Array(5400).fill(0) };
  for (let i = 15; i < 75; i++) for (let k = 0; k < 3; k++) ink.data[(28 + k) * 90 + i] = 255;
  await read(new Decoder({ ...network, model: { ...network.model, search: { ...network.model.search, max_len: 4 } } }, pause), ink);
  tell({ kind: "ready" });
}

// The same network at one size of the image, in one direction, with few beams: a first glimpse, shown while it reads.
function quick({ model, ...rest }) {
  const scales = [model.scales.reduce((a, b) => (Math.abs(b - 1) < Math.abs(a - 1) ? b : a))];
  const search = { ...model.search, directions: model.search.directions.slice(0, 1), beam_size: Math.min(3, model.search.beam_size) };
  return { ...rest, model: { ...model, scales, search } };
}

async function recognize({ id, ink }) {
  latest = id;
  const began = performance.now();
  const check = async () => {
    await pause();
    if (latest !== id) throw new Cancelled();
  };
  try {
    const answer = (found, final) => tell({
      kind: "read", id, final,
      nbest: found.slice(0, 5).map(({ tokens, confidence }) => ({ tokens, confidence, complete: isComplete(tokens) })),
      seconds: (performance.now() - began) / 1000,
      doubtful: !found.length || found[0].confidence < network.model.confidence.doubtful,
    });
    const glimpsed = await read(new Decoder(quick(network), check), ink);
    if (glimpsed.length) answer(glimpsed, false);
    const decoder = new Decoder(network, check), found = await read(decoder, ink);
    answer(found, true);
    if (!found.length || !("l2r" in network.model.starts)) return;
    const { h, w, maps } = await look(decoder, found[0].ids);
    const cell = (network.model.stride * ink.height) / views(ink, network.model)[0].size[0];
    tell({ kind: "looked", id, h, w, maps, cell });
  } catch (error) {
    if (!(error instanceof Cancelled)) tell({ kind: "failed", id, reason: String(error.message ?? error) });
  }
}

self.onmessage = async ({ data }) => {
  if (data.kind === "read") return recognize(data);
  try {
    await start(data);
  } catch (error) {
    tell({ kind: "damaged", reason: String(error.message ?? error).slice(0, 200) });
  }
};
