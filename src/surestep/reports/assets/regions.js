// The decision regions of a classifier of two inputs: a frame for each evaluation.

const PLANE = 440, FRAME_MS = 250, DOT = 2.5;

/** Return the section of the decision regions; null if the run recorded none. */
function makeRegions(found) {
  if (!found) return null;
  const {frames, damaged, left_out: omitted} = found;
  const notes = [
    omitted ? `Evaluations that are left out, since the page would be too large: ${formatNumber(omitted)}.` : null,
    damaged ? `Evaluations that are damaged: ${formatNumber(damaged)}.` : null];
  return makeSection("Decision regions", frames.length ? makeFrames(found) : null,
    notes.filter(Boolean).map(text => make("p", {class: "soft small"}, text)));
}

function makeFrames({frames, points, colors, metric}) {
  const image = makeSvg("image", {width: PLANE, height: PLANE, preserveAspectRatio: "none"});
  const dots = points.labels.map(label => makeSvg("circle", {r: DOT, fill: colors[label] ?? "currentColor"}));
  const ends = [["start", PLANE - 4], ["end", PLANE - 4], ["start", 14]].map(([anchor, y]) =>
    makeSvg("text", {x: anchor === "start" ? 4 : PLANE - 4, y, "text-anchor": anchor}));
  const picture = makeSvg("svg", {viewBox: `0 0 ${PLANE} ${PLANE}`, role: "img"}, image, dots, ends);
  const caption = make("p", {class: "frame", role: "status"});
  const slider = make("input", {type: "range", min: 0, max: frames.length - 1, value: frames.length - 1,
    "aria-label": "Evaluation", input: () => show()});

  function show() {
    const {step, measured, value, png, x: [left, right], y: [low, high]} = frames[slider.value];
    const weights = measured === "average" ? ", average of the weights" : "";
    const text = `step ${formatNumber(step)}${weights}${value === null ? "" : `: ${metric} ${formatNumber(value)}`}`;
    caption.textContent = text;
    slider.setAttribute("aria-valuetext", text);
    picture.setAttribute("aria-label", `The class that the model predicts in the plane of its inputs, ${text}`);
    image.setAttribute("href", `data:image/png;base64,${png}`);
    dots.forEach((dot, at) => {
      dot.setAttribute("cx", (points.x[at] - left) / (right - left) * PLANE);
      dot.setAttribute("cy", (high - points.y[at]) / (high - low) * PLANE);
    });
    [`${formatNumber(left, 2)}, ${formatNumber(low, 2)}`, formatNumber(right, 2), formatNumber(high, 2)]
      .forEach((end, at) => { ends[at].textContent = end; });
  }

  show();
  const legend = colors.map((color, label) => {
    const swatch = make("i", {class: "swatch"});
    swatch.style.background = color;
    return make("span", {}, swatch, `class ${label}`);
  });
  return make("figure", {class: "regions"},
    make("figcaption", {class: "soft small"}, "The class that the model predicts in the plane of its inputs: the stronger the color, " +
      `the more confident. The ${formatNumber(dots.length)} points are samples of the training data.`),
    picture, make("div", {class: "frames"}, frames.length > 1 ? [slider, makePlayButton(slider)] : []),
    caption, make("div", {class: "legend"}, legend));
}

/** Return a button that moves a slider from its start to its end. */
function makePlayButton(slider) {
  let timer = null;
  const move = value => {
    slider.value = value;
    slider.dispatchEvent(new Event("input"));
  };
  const stop = () => {
    clearInterval(timer);
    timer = null;
    button.textContent = "Play";
  };
  const next = () => {
    if (!slider.isConnected || Number(slider.value) >= Number(slider.max)) stop();
    else move(Number(slider.value) + 1);
  };
  const play = () => {
    if (timer !== null) return stop();
    if (slider.value === slider.max) move(0);
    timer = setInterval(next, FRAME_MS);
    button.textContent = "Stop";
  };
  const button = make("button", {type: "button", click: play}, "Play");
  return button;
}
