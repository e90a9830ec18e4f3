// The page that compares runs.

/** What the charts of several runs share, besides what those of one share. */
class RunsView extends View {
  constructor(data) {
    super(data, RunsChart);
    this.take(data);
  }

  /** Take the runs; those that are hidden stay so. */
  take({runs}) {
    const hidden = new Set((this.runs ?? []).filter(run => run.isHidden).map(run => run.name));
    const hadSeeds = this.hasSeeds ?? false;
    this.runs = runs;
    for (const run of runs) run.isHidden = hidden.has(run.name);
    this.hasSeeds = new Set(runs.map(run => run.group)).size < runs.length;
    this.isBand = hadSeeds ? this.isBand : this.hasSeeds;
    this.showControls?.();
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
    super(view, {...chart, curves: nameCurves(view, chart)});
    this.encoded = chart;
  }

  fillLegend() {
    this.legend.replaceChildren(this.notes);  // the table of runs has their colors
  }

  renew(chart) {
    Object.assign(this, {encoded: chart, at: null, meanAt: null});
    super.renew({...chart, curves: nameCurves(this.view, chart)});
  }

  /** Take new steps, and of each curve that has changed what follows its first change. */
  grow({steps, mean_steps, curves}) {
    for (const curve of this.curves) this.decode(curve);
    this.at = join(this.at, decodeSteps(steps));
    this.meanAt = join(this.meanAt, decodeSteps(mean_steps));
    const byRun = new Map(curves.map(increment => [increment.run, increment]));
    for (const curve of this.curves) {
      const {values, means, values_from = 0, means_from = 0, ...known} = byRun.get(curve.run) ?? {};
      Object.assign(curve, known, {at: this.at, meanAt: this.meanAt,
        y: replaceEnd(curve.y, this.at.length, values, values_from),
        mean: replaceEnd(curve.mean, this.meanAt.length, means, means_from)});
    }
    this.forgetTable();
    return this;
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
      {steps, count: steps.length, values: weight ? smooth(mean, weight) : mean, series: {stroke: color, width: 2,
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

/** Return curves with the names and the colors of their runs. */
function nameCurves({runs, hasSeeds}, {curves}) {
  return curves.map(curve => ({...curve, name: runs[curve.run].name,
    number: hasSeeds ? runs[curve.run].group : curve.run}));
}

/** Return so many values, which are those of a curve but for an encoded end; NaN where it has none. */
function replaceEnd(values, count, end, from) {
  const replaced = new Float64Array(count).fill(NaN);
  replaced.set(values);
  if (end) replaced.set(decode(end), from);
  return replaced;
}

/** Show runs; return how the page takes what is new. */
function showRuns(data) {
  const view = new RunsView(data), parts = new Parts(data), add = parts.add.bind(parts);
  const band = make("input", {type: "checkbox", change: () => view.set("isBand", band.checked)});
  band.checked = view.isBand;
  const toggle = make("label", {}, band, "seeds as a band (mean and range)");
  showPage("Comparison of runs", add(["runs", "groups", "about"], ({runs, groups, about}) => make("span", {},
    [`${runs.length} ${runs.length === 1 ? "run" : "runs"}`,
      groups.length < runs.length ? ` in ${groups.length} groups` : "", about ? ` · ${about}` : ""].join(""))),
    add(["winners", "groups"], known => makeSection("Best by metric", known.winners.length ? makeWinners(known)
      : make("p", {class: "soft"},
        "There is nothing to compare: the runs have one set of options, or no metric in common."))),
    add(["runs", "options"], known => makeSection("Runs", makeRunsTable(known, view))),
    add(["runs", "options"], known => makeSection("Options that differ", makeOptions(known))),
    add(["problems"], ({problems}) => makeSection("Not shown", Object.entries(problems).map(([name, text]) =>
      make("p", {}, make("b", {}, name), `: ${text}`)))),
    makeCharts(view, data.charts, null, toggle),
    makeFooter(data));
  const show = view.showControls;
  view.showControls = () => {
    show();
    toggle.hidden = !view.hasSeeds;
    band.checked = view.isBand;
  };
  view.showControls();
  return {parts, view};
}

/** Return how many runs a mean is of, and how many others have no finite value. */
const countRuns = (runs, without) => without ? `${runs} of ${runs + without} runs` : runs > 1 ? `${runs} runs` : "1 run";

/** Return the best group by each metric, and whether its lead is larger than the spread of seeds. */
function makeWinners(data) {
  const name = group => ({value: data.groups[group], text: make("span", {},
    make("i", {class: `swatch series-${group % COLORS}`}), data.groups[group])});
  const rows = data.winners.map(one => [one.metric, name(one.group),
    {value: one.mean, text: `${formatNumber(one.mean)} (${countRuns(one.runs, one.without)})`},
    name(one.second),
    {value: one.second_mean, text: `${formatNumber(one.second_mean)} (${countRuns(one.second_runs, one.second_without)})`},
    one.lead, one.spread,
    one.without || one.second_without ? "not known: some runs have no finite value"
      : one.is_clear === null ? "not known: train both with several seeds"
      : one.is_clear ? "larger than the spread of seeds" : "within the spread of seeds"]);
  return makeTable(["metric", "best", "mean", "second", "its mean", "lead", "spread of seeds", "the lead is"], rows,
    {caption: "Means of the runs of a group, at their best checkpoints. The spread is the larger standard deviation of both groups."});
}

function makeRunsTable(data, view) {
  const metrics = [...new Set(data.runs.flatMap(run => Object.keys(run.metrics)))];
  const rows = data.runs.map((run, number) => {
    const box = make("input", {type: "checkbox", "aria-label": `show ${run.name}`,
      change: () => view.show(run, box.checked)});
    box.checked = !run.isHidden;
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
