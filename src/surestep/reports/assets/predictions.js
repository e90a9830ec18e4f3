// The predictions of a run: confusions, calibration, residuals, and single samples.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 320, WIDE = 860, HEIGHT = 200, LEFT = 52, BOTTOM = 34, TOP = 8, RIGHT = 8;

function makeSvg(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.flat());
  return element;
}

/** Return the section of all evaluations that were collected; null if none was to be. */
function makePredictions(predictions) {
  if (!predictions) return null;
  return makeSection("Predictions",
    predictions.why ? make("p", {class: "soft"}, `Not shown: ${predictions.why}`) : null,
    predictions.evaluations.flatMap(makeEvaluation));
}

function makeEvaluation(evaluation) {
  const kinds = [evaluation.is_newest ? "the newest evaluation" : null, evaluation.is_best ? "the best" : null];
  const weights = evaluation.measured === "average" ? ", of the average of the weights" : "";
  const when = `step ${formatNumber(evaluation.step)}: ${kinds.filter(Boolean).join(" and ")}${weights}`;
  const content = () => make("div", {}, evaluation.sets.map(makeSet),
    evaluation.left_out.map(text => make("p", {class: "soft small"}, text)));
  if (!evaluation.is_newest) return [makeDetails(when, content)];
  return [make("p", {class: "soft small"}, when), content()];
}

function makeSet(found) {
  const title = found.loss ? `${found.set}: ${found.loss}` : found.set;
  if (found.kind === "none")
    return make("div", {}, make("h3", {}, title), make("p", {class: "soft"}, `Not shown: ${found.why}`));
  const counted = (found.right ?? 0) + (found.wrong ?? 0);
  const limited = found.limit_batches ? ` (the first ${formatNumber(found.limit_batches)} batches)` : "";
  const facts = [
    `${formatNumber(found.n_samples)} samples${limited}`,
    found.n_elements !== found.n_samples ? `${formatNumber(found.n_elements)} targets` : null,
    counted ? `${formatShare(found.right / counted)} right` : null,
    found.calibration && found.calibration.ece !== null
      ? `expected calibration error ${formatNumber(found.calibration.ece)}` : null,
    found.not_finite ? `${formatNumber(found.not_finite)} not finite` : null,
  ];
  const nameOf = label => found.class_names?.[label] ?? String(label);
  return make("div", {class: "set"}, make("h3", {}, title),
    make("p", {}, facts.filter(Boolean).join(" · ")),
    found.why ? make("p", {class: "soft"}, `Confusions are not shown: ${found.why}`) : null,
    make("div", {class: "columns"}, [
      found.matrix ? makeMatrix(found.matrix, nameOf) : null,
      found.calibration ? makeCalibration(found.calibration.bins) : null,
      found.pairs?.length && found.classes > 2 ? makePairsOfClasses(found, nameOf) : null,
      found.labels ? makeLabels(found) : null,
      found.residuals ? makeHistogram(found.residuals) : null,
      found.points?.length ? makePoints(found.points) : null].filter(Boolean)),
    makeSamples("Largest losses", found, "worst", nameOf),
    makeSamples("Most confident errors", found, "confident", nameOf));
}

/** Return a matrix; the color of a cell is its share of the row. */
function makeMatrix(matrix, nameOf) {
  const head = make("tr", {}, make("th", {scope: "col"}, "target \\ prediction"),
    matrix.map((_, at) => make("th", {scope: "col"}, nameOf(at))));
  const rows = matrix.map((counts, at) => {
    const total = counts.reduce((sum, count) => sum + count, 0);
    return make("tr", {}, make("th", {scope: "row"}, nameOf(at)), counts.map((count, other) => {
      const share = total ? count / total : 0;
      const cell = make("td", {class: at === other ? "right" : "wrong",
        title: `${nameOf(at)} as ${nameOf(other)}: ${formatShare(share)}`}, formatNumber(count));
      cell.style.setProperty("--share", share);
      return cell;
    }));
  });
  return make("figure", {class: "scroll"}, make("table", {class: "matrix"},
    make("caption", {}, "Confusion matrix; a color is the share of a row"),
    make("thead", {}, head), make("tbody", {}, rows)));
}

function makePairsOfClasses(found, nameOf) {
  const more = found.pairs_left_out ? `, of ${formatNumber(found.pairs.length + found.pairs_left_out)} pairs` : "";
  return makeTable(["target", "prediction", "count"], found.pairs.map(([target, prediction, count]) =>
    [nameOf(target), nameOf(prediction), count]), {caption: `Most frequent errors${more}`});
}

function makeLabels(found) {
  const more = found.labels_left_out ? `; ${formatNumber(found.labels_left_out)} others are left out` : "";
  return makeTable(["label", "true positives", "false positives", "false negatives", "true negatives"],
    found.labels.map(([label, ...counts]) => [String(label), ...counts]), {caption: `Labels with the most errors${more}`});
}

/** Return a diagram with axes; draw gets functions that turn numbers into positions. */
function makeDiagram(title, [left, right], [low, high], [across, up], draw, format = formatNumber, width = WIDTH) {
  const x = value => LEFT + (value - left) / ((right - left) || 1) * (width - LEFT - RIGHT);
  const y = value => HEIGHT - BOTTOM - (value - low) / ((high - low) || 1) * (HEIGHT - BOTTOM - TOP);
  const text = (attributes, content) => makeSvg("text", attributes, content);
  const ends = [
    text({x: LEFT, y: HEIGHT - BOTTOM + 14}, format(left)),
    text({x: width - RIGHT, y: HEIGHT - BOTTOM + 14, "text-anchor": "end"}, format(right)),
    text({x: LEFT - 4, y: HEIGHT - BOTTOM, "text-anchor": "end"}, formatNumber(low)),
    text({x: LEFT - 4, y: TOP + 10, "text-anchor": "end"}, formatNumber(high)),
    text({x: (LEFT + width) / 2, y: HEIGHT - 4, "text-anchor": "middle"}, across),
    text({x: 12, y: HEIGHT / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${HEIGHT / 2})`}, up),
    makeSvg("path", {class: "axis", d: `M${LEFT} ${TOP}V${HEIGHT - BOTTOM}H${width - RIGHT}`})];
  return make("figure", {class: width > WIDTH ? "diagram wide" : "diagram"}, make("figcaption", {class: "soft small"}, title),
    makeSvg("svg", {viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": title}, ends, draw(x, y)));
}

/** Return the section of the range tests that found the learning rate; null if there were none. */
function makeRangeTests(found) {
  if (!found) return null;
  const swatches = found.seeds.map((seed, number) => make("span", {}, make("i", {class: `swatch series-${number}`}), `seed ${seed}`));
  return makeSection("Range tests of the learning rate",
    make("div", {class: "legend"}, swatches), makeRangeCurves(found),
    found.trainings.length ? makeTable(["rate of a short training", ...found.seeds.map(seed => `loss of seed ${seed}`)],
      found.trainings.map(({lr, losses}) => [lr, ...losses.map(loss => loss ?? "diverged")])) : null,
    make("p", {class: "soft small"}, found.why));
}

function makeRangeCurves(found) {
  const logs = found.curves.flatMap(({rates}) => rates.map(Math.log10)), [low, high] = found.range;
  const drawCurve = (x, y, {rates, losses}, number) => makeSvg("polyline", {class: `line-${number}`,
    points: rates.map((rate, at) => [rate, losses[at] ?? null]).filter(([, loss]) => loss !== null)
      .map(([rate, loss]) => `${x(Math.log10(rate))},${y(Math.min(loss, high))}`).join(" ")},
    makeSvg("title", {}, `seed ${found.seeds[number]}`));
  return makeDiagram(`The loss of ${found.curves.length} seeds; the line is ${found.option} = ${formatNumber(found.lr)}`,
    [Math.min(...logs), Math.max(...logs)], [low, high], ["learning rate", "loss"], (x, y) => [
      makeSvg("path", {class: "ideal", d: `M${x(Math.log10(found.lr))} ${y(low)}V${y(high)}`}),
      ...found.curves.map((curve, number) => drawCurve(x, y, curve, number))],
    log => formatNumber(10 ** log, 3), WIDE);
}

/** Return a bar from 0 to a value with its text. */
function makeBar(x, y, [from, to], value, label) {
  return makeSvg("rect", {x: x(from), width: Math.max(0.5, x(to) - x(from) - 1), y: y(value),
    height: Math.max(0, y(0) - y(value)), class: "bar-of-diagram"}, makeSvg("title", {}, label));
}

function makeCalibration(bins) {
  const width = 1 / bins.length;
  return makeDiagram("Accuracy by confidence; the line is that of a calibrated model", [0, 1], [0, 1],
    ["confidence", "accuracy"], (x, y) => [
      ...bins.map(([count, confidence, accuracy], at) => count === 0 ? [] : makeBar(x, y, [at * width, (at + 1) * width],
        accuracy, `${formatNumber(count)} predictions with confidence ${formatNumber(confidence)}: ` +
          `${formatShare(accuracy)} right`)).flat(),
      makeSvg("path", {class: "ideal", d: `M${x(0)} ${y(0)}L${x(1)} ${y(1)}`})]);
}

function makeHistogram({first, width, counts}) {
  const most = Math.max(...counts), end = first + width * counts.length;
  return makeDiagram("Residuals: prediction minus target", [first, end], [0, most], ["residual", "count"],
    (x, y) => counts.map((count, at) => makeBar(x, y, [first + at * width, first + (at + 1) * width], count,
      `${formatNumber(first + at * width)} to ${formatNumber(first + (at + 1) * width)}: ${formatNumber(count)}`)));
}

function makePoints(points) {
  const low = Math.min(...points.flat()), high = Math.max(...points.flat());
  return makeDiagram(`Predictions of ${formatNumber(points.length)} targets`, [low, high], [low, high],
    ["target", "prediction"], (x, y) => [
      makeSvg("path", {class: "ideal", d: `M${x(low)} ${y(low)}L${x(high)} ${y(high)}`}),
      ...points.map(([target, prediction]) => makeSvg("circle", {cx: x(target), cy: y(prediction), r: 2}))]);
}

function makeSamples(title, found, list, nameOf) {
  if (!found[list]?.length) return null;
  return make("div", {}, make("h4", {}, title), make("div", {class: "samples"},
    found[list].map(index => makeSample(found.samples[index], found, nameOf))));
}

function makeSample(sample, found, nameOf) {
  const show = value => Array.isArray(value) ? value.slice(0, 6).map(show).join(", ") + (value.length > 6 ? ", ..." : "")
    : found.kind === "numbers" ? formatNumber(value) : value < 0 ? "not finite" : nameOf(value);
  const at = `${found.is_stream ? "position" : "sample"} ${formatNumber(sample.index)}` +
    (sample.row === undefined ? "" : `, row ${formatNumber(sample.row)}`);
  const wrong = sample.n_kept === undefined ? null
    : `${formatNumber(sample.n_wrong)} of ${formatNumber(sample.n_kept)} wrong`;
  return make("figure", {class: "sample"}, makeInput(sample.input, at),
    make("figcaption", {},
      make("div", {class: "soft small"}, at),
      make("div", {}, `predicted ${show(sample.prediction)}, target ${show(sample.target)}`),
      wrong ? make("div", {class: "small"}, wrong) : null,
      make("div", {class: "soft small"}, `loss ${formatNumber(sample.loss)}` + (sample.confidence === undefined
        || sample.confidence === null ? "" : `, confidence ${formatNumber(sample.confidence)}`))));
}

function makeInput(input, label) {
  if (input.kind === "picture" && input.png)
    return make("img", {src: `data:image/png;base64,${input.png}`, alt: label, loading: "lazy",
      title: `shape ${input.shape.join(" x ")}`});
  if (!input.values) return make("p", {class: "soft small"}, input.why ?? "no input to show");
  const more = input.shape.reduce((a, b) => a * b, 1) > input.values.length ? " ..." : "";
  return make("code", {class: "values", title: `shape ${input.shape.join(" x ")}`},
    input.values.map(value => formatNumber(value)).join(" ") + more);
}
