// The page that compares runs.

/** What the charts of several runs share, besides what those of one share. */
class RunsView extends View {
  constructor(data) {
    super(data.axes, []);
    this.runs = data.runs;
    this.hasSeeds = data.groups.some((_, group) => this.countShown(group, data.runs) > 1);
    this.isBand = this.hasSeeds;
  }

  countShown(group, runs = this.runs) {
    return runs.filter(run => run.group === group && !run.isHidden).length;
  }

  /** Show or hide a run in all charts. */
  show(run, isShown) {
    run.isHidden = !isShown;
    this.redraw();
  }
}

/** A chart of a column, with a curve of each run, or a band of each group of seeds. */
class RunsChart extends Chart {
  constructor(view, chart) {
    super(view, {...chart, curves: chart.curves.map(curve => ({...curve,
      name: view.runs[curve.run].name,
      number: view.hasSeeds ? view.runs[curve.run].group : curve.run}))});
    this.encoded = chart;
    this.legend.replaceChildren(this.notes);  // the table of runs has their colors
  }

  decode(curve) {
    curve.at = this.at ??= decodeSteps(this.encoded.steps);
    curve.meanAt = this.meanAt ??= decodeSteps(this.encoded.mean_steps);
    curve.y ??= decode(curve.values);
    curve.mean ??= decode(curve.means);
    return curve;
  }

  listLines() {
    for (const curve of this.curves) curve.isShown = !this.view.runs[curve.run].isHidden;
    this.bands = [];
    // Runs have different positions for the same step on other axes.
    if (!this.view.isBand || this.view.unit !== "step") return super.listLines();
    const groups = Map.groupBy(this.curves.filter(curve => curve.isShown),
      curve => this.view.runs[curve.run].group);
    return [...groups].flatMap(([group, curves]) => curves.length > 1
      ? this.makeBand(group, curves.map(curve => this.decode(curve)))
      : this.makeLines(this.decode(curves[0])));
  }

  /** Return the lowest, the highest and the mean value of the runs of a group. */
  makeBand(group, curves) {
    const hasMeans = curves[0].mean.length > 0, steps = hasMeans ? curves[0].meanAt : curves[0].at;
    const columns = curves.map(curve => hasMeans ? curve.mean : curve.y);
    const at = (_, index) => columns.map(column => column[index]).filter(Number.isFinite);
    const pick = choose => Float64Array.from(steps, (step, index) => {
      const values = at(step, index);
      return values.length ? choose(values) : NaN;
    });
    const color = colorOf(`--series-${group % COLORS}`);
    const weight = hasMeans && this.is_noisy ? this.view.weight : 0;
    const mean = pick(values => values.reduce((sum, value) => sum + value, 0) / values.length);
    const edge = {stroke: `${color}33`, width: 1};
    this.bands.push({group, fill: `${color}2e`});
    return [{steps, group, edge: "high", values: pick(values => Math.max(...values)), series: edge},
      {steps, group, edge: "low", values: pick(values => Math.min(...values)), series: edge},
      {steps, values: weight ? smooth(mean, weight) : mean, series: {stroke: color, width: 2,
        dash: DASHES[Math.floor(group / COLORS) % DASHES.length]}}];
  }

  listBands() {
    const find = (group, edge) => 1 + this.lines.findIndex(
      line => line.group === group && line.edge === edge);
    return this.bands.map(({group, fill}) => ({series: [find(group, "high"), find(group, "low")], fill}));
  }

  /** Show the best values at the cursor. */
  showValues(index) {
    if (index === null || index === undefined || !this.plot) return;
    const texts = this.curves.filter(curve => curve.isShown).map(curve => {
      const line = this.lines.findIndex(one => one.curve === curve);
      const value = line < 0 ? null : this.plot.data[line + 1][index];
      return typeof value === "number" ? `${curve.name} ${formatValue(value, this.unit)}` : null;
    }).filter(Boolean);
    const place = `${AXES[this.view.unit]} ${this.view.formatPlace(this.plot.data[0][index])}`;
    this.notes.textContent = [place, ...texts.slice(0, 6)].join(" · ");
  }
}

function showRuns(data) {
  const view = new RunsView(data), metrics = [...new Set(data.runs.flatMap(run => Object.keys(run.metrics)))];
  const charts = data.charts.map(chart => new RunsChart(view, chart));
  const band = make("input", {type: "checkbox", change: () => view.set("isBand", band.checked)});
  band.checked = view.isBand;
  const toggle = view.hasSeeds ? make("label", {}, band, "seeds as a band (mean and range)") : null;
  const kinds = data.groups.length === data.runs.length ? "" : ` in ${data.groups.length} groups`;
  showPage("Comparison of runs", `${data.runs.length} runs${kinds}`,
    makeSection("Best by metric", data.winners.length ? makeWinners(data) : make("p", {class: "soft"},
      "There is nothing to compare: the runs have one set of options, or no metric in common.")),
    makeSection("Runs", makeRunsTable(data, view, metrics)),
    makeSection("Options that differ", makeOptions(data)),
    makeSection("Not shown", Object.entries(data.problems).map(([name, text]) =>
      make("p", {}, make("b", {}, name), `: ${text}`))),
    charts.length ? makeControls(view, toggle) : null,
    make("div", {class: "charts"}, charts.map(chart => chart.figure)),
    make("p", {class: "soft small"}, `Written by surestep ${data.version}. This page requests nothing.`));
}

/** Return the best group by each metric, and whether its lead is larger than the spread of seeds. */
function makeWinners(data) {
  const name = group => ({value: data.groups[group], text: make("span", {},
    make("i", {class: `swatch series-${group % COLORS}`}), data.groups[group])});
  const rows = data.winners.map(one => [one.metric, name(one.group),
    {value: one.mean, text: `${formatNumber(one.mean)} (${one.runs} ${one.runs > 1 ? "runs" : "run"})`},
    name(one.second),
    {value: one.second_mean, text: `${formatNumber(one.second_mean)} (${one.second_runs} ${one.second_runs > 1 ? "runs" : "run"})`},
    one.lead, one.spread,
    one.is_clear === null ? "not known: train both with several seeds"
      : one.is_clear ? "larger than the spread of seeds" : "within the spread of seeds"]);
  return makeTable(["metric", "best", "mean", "second", "its mean", "lead", "spread of seeds", "the lead is"], rows,
    {caption: "Means of the runs of a group, at their best checkpoints. The spread is the larger standard deviation of both groups."});
}

function makeRunsTable(data, view, metrics) {
  const rows = data.runs.map((run, number) => {
    const box = make("input", {type: "checkbox", "aria-label": `show ${run.name}`,
      change: () => view.show(run, box.checked)});
    box.checked = true;
    const color = (view.hasSeeds ? run.group : number) % COLORS;
    return [{value: run.name, text: make("label", {class: "run"}, box, make("i", {class: `swatch series-${color}`}), run.name)},
      run.state, run.step, {value: run.seconds, text: formatDuration(run.seconds)},
      ...metrics.map(name => run.metrics[name] ?? null),
      ...data.options.map(name => writeOption(run.options[name]))];
  });
  return makeTable(["run", "state", "step", "time", ...metrics, ...data.options], rows,
    {caption: "Metrics are those of the best checkpoint, or of the last evaluation. Click a column to sort."});
}

const writeOption = value => value === null || value === undefined ? null
  : typeof value === "number" || typeof value === "string" ? value : JSON.stringify(value);

/** Return the options that differ, with a column for each run; null for many runs, which their table has. */
function makeOptions(data) {
  if (!data.options.length || data.runs.length > 8) return null;
  return makeTable(["option", ...data.runs.map(run => run.name)],
    data.options.map(name => [name, ...data.runs.map(run => writeOption(run.options[name]))]));
}
