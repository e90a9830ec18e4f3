// The page of a tuning.

function showTuning(data) {
  showPage(["Speed of ", make("bdi", {}, data.recipe)], "What makes a step faster, and what keeps its numbers.",
    makeSection("The whole run", data.sentences.map(text => make("p", {}, text))),
    makeSteps(data),
    ...data.tables.map(({title, rows, unused}) => makeSection(title,
      makeTable(data.columns, rows, {caption: title}), unused ? make("p", {class: "soft small"}, unused) : null)),
    makeLosses(data),
    makeFooter(data));
}

/** Return the plot of the time a step with the options of each rung; null if there is no rung. */
function makeSteps({steps}) {
  if (steps.length < 2) return null;
  const toMs = seconds => seconds * 1000, format = seconds => `${formatNumber(toMs(seconds), 3)} ms`;
  const kinds = {kept: "best", proposed: "finished"}, isTaken = ({outcome}) => outcome in kinds;
  const points = steps.map((step, at) => ({...step, at})), line = {trial: null, isLine: true, texts: () => []};
  const marks = [
    {...line, kind: "best-so-far", values: points.filter(isTaken).map(({at, seconds}) => [at, toMs(seconds[0])])},
    ...points.map(({at, seconds: [, low, high]}) =>
      ({...line, kind: "other", values: [[at, toMs(low)], [at, toMs(high)]]})),
    ...points.map(({at, name, outcome, seconds: [middle, low, high]}) => ({trial: at, kind: kinds[outcome] ?? "pruned",
      heading: name, values: [[at, toMs(middle)]], texts: () => [["time a step", format(middle)],
        ["95% interval", `${format(low)} to ${format(high)}`], ["outcome", outcome]]})),
  ];
  const times = steps.flatMap(({seconds}) => seconds.map(toMs));
  const frame = makeFrame(new Axis("", points.map(({at}) => at), {labels: steps.map(({name}) => name)}),
    new Axis("time a step, ms", [0, ...times], {isLog: false}), 300);
  return new Plot(new Selection(), {title: ["Time a step with each rung"], marks, frame, size: "wide", what: "rung",
    note: "Dots are kept or proposed, crosses are not taken. Upright lines are 95% intervals.", keys: []}).figure;
}

/** Return a plot for each rung that changes the numbers: the loss of each seed, with and without it. */
function makeLosses({curves}) {
  if (!curves.length) return null;
  const selection = new Selection();
  return make("div", {class: "charts"}, curves.map(curve => {
    const line = (kind, name) => (losses, number) => ({trial: null, kind, isLine: true,
      heading: `${name}, seed ${number + 1}`, values: losses.map((loss, at) => [at + 1, loss]).filter(
        ([, loss]) => Number.isFinite(loss)), texts: () => []});
    const marks = [...curve.without.map(line("other", "without")), ...curve.with.map(line("best", "with"))];
    const points = marks.flatMap(mark => mark.values);
    const frame = makeFrame(new Axis("step", points.map(([at]) => at), {isLog: false}),
      new Axis("loss", points.map(([, value]) => value)), 250);
    return new Plot(selection, {title: ["Loss with ", make("bdi", {}, curve.title)], marks, frame, size: "",
      note: "Each line is a seed; highlighted are those with the options.", keys: []}).figure;
  }));
}

showTuning(readData());
