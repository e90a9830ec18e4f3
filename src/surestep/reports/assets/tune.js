// The page of a tuning.

function showTuning(data) {
  showPage(["Speed of ", make("bdi", {}, data.recipe)], "What makes a step faster, and what keeps its numbers.",
    makeSection("The whole run", data.sentences.map(text => make("p", {}, text))),
    ...data.tables.map(({title, rows}) => makeSection(title, makeTable(data.columns, rows, {caption: title}))),
    makeLosses(data),
    makeFooter(data));
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
