// The page of a search.

const DIGITS = 5;
const ROUGH_FROM = 50;  // trials, up to which importances are rough

function showSearch(data) {
  const search = new Search(data), {selection} = search;
  const sections = [
    makeNumbers(search),
    make("div", {class: "columns"}, makeBest(search),
      makeSection("What was searched", makePairs(data.space))),
    makeConfirmed(search),
    makeGrid("charts thirds", makeFronts(search)),
    makeGrid("charts", makePlots(search)),
    makeGrid("charts thirds", makeSlices(search)),
    makeTrials(search),
    make("p", {class: "soft small"}, `${data.study}, written by surestep ${data.version}. ` +
      "This page requests nothing; report.json has its numbers."),
  ];
  const goals = data.objectives.map(({name, direction}, at) =>
    [at ? " and " : "", direction === "max" ? "highest " : "lowest ", isolate(name)]);
  const where = data.where.length ? [" where ", isolate(data.where.join(" and "))] : [];
  const settings = data.settings.flatMap(text => [" · ", isolate(text)]);
  showPage(["Search of ", isolate(data.recipe)], ["Goal: ", ...goals.flat(), ...where, ...settings], ...sections);
  addEventListener("keydown", event => { if (event.key === "Escape") selection.mark("selected", null); });
  document.body.append(makeBar(search));
  return selection;
}

function makeGrid(kind, plots) {
  return plots.length ? make("div", {class: kind}, plots) : null;
}

/** Return a name whose direction of writing does not change the text around it. */
const isolate = text => make("bdi", {}, text);
const isNumber = value => Number.isFinite(value);

/** What the parts of the page need of the study. */
class Search {
  constructor(data) {
    this.data = data;
    this.selection = new Selection();
    this.names = data.objectives.map(objective => objective.name);
    this.isSingle = this.names.length === 1;
    this.winner = data.winner;
    this.best = new Set(data.winner ? [data.winner.number] : data.best);
    this.finished = data.trials.filter(trial => trial.state === "finished" && trial.values?.every(isNumber));
    this.pruned = data.trials.filter(trial =>
      this.isSingle && trial.state === "pruned" && isNumber(lastOf(trial)));
    this.measured = [...this.finished, ...this.pruned].sort((a, b) => a.number - b.number);
    this.parameters = [...data.parameters].sort((a, b) => a.key < b.key ? -1 : 1)
      .filter(({key}) => this.measured.some(trial => key in trial.params));
  }

  /** Return the value of an objective; the last one of a pruned trial. */
  read(trial, objective) {
    return trial.state === "pruned" ? lastOf(trial) : trial.values[objective];
  }

  kindOf(trial) {
    if (this.best.has(trial.number)) return this.isSingle ? "best" : "front";
    return trial.state === "finished" && !trial.is_feasible ? "outside" : trial.state;
  }

  /** Return a mark of a trial; `texts` are pairs of a name and a text, for each of its points. */
  mark(trial, values, texts, others = {}) {
    const kind = this.kindOf(trial);
    const heading = `Trial ${trial.number}${kind === "finished" ? "" : `, ${KINDS[kind].label}`}`;
    return {trial: trial.number, kind, heading, values, texts, ...others};
  }

  /** Return the kinds of marks, for a legend. */
  listKeys(marks, isLine = false) {
    const kinds = new Set(marks.map(mark => mark.kind));
    return ORDER.filter(kind => kinds.has(kind)).map(kind => ({kind, isLine}));
  }

  plot(options) {
    return new Plot(this.selection, options).figure;
  }
}

/** Return the last value of the first objective, which is null if it is not finite. */
function lastOf(trial) {
  return Object.values(trial.intermediate).at(-1) ?? null;
}

/** Return the value of a parameter, or the label of a choice. */
function readParameter({key, labels}, {params}) {
  return labels.length ? labels[params[key]] : params[key];
}

function makeNumbers({data, names, best, winner, isSingle}) {
  const [trial] = data.trials.filter(one => best.has(one.number));
  const confirmed = winner?.confirmed?.find(one => one.number === winner.number);
  const main = !isSingle ? [String(best.size), "trials on the Pareto front"]
    : !trial ? ["none yet", `best ${names[0]}`]
    : confirmed ? [formatNumber(confirmed.mean, DIGITS), `mean ${names[0]} of the winner, trial ${trial.number}`]
    : [formatNumber(trial.values[0], DIGITS), `best ${names[0]}, trial ${trial.number}`];
  const states = Object.entries(data.counts).filter(([state, count]) =>
    count || ["finished", "pruned", "failed"].includes(state));
  return make("div", {class: "numbers"}, makeNumber(...main, "main"),
    states.map(([state, count]) => makeNumber(formatNumber(count), state)),
    makeNumber(formatNumber(data.evaluations), "evaluations"),
    makeNumber(formatDuration(data.seconds), "wall time of the trials"));
}

function makeBest({data, names, best, winner, isSingle, selection}) {
  const trials = data.trials.filter(trial => best.has(trial.number)), [trial] = trials;
  if (!trial) return makeSection("Best trial", make("p", {class: "soft small"},
    `No trial is finished${data.where.length ? " and satisfies the constraints" : ""}.`));
  if (!isSingle) return makeSection("Pareto front", make("p", {class: "soft small"},
    "No other trial is better in one objective without being worse in another."),
    makeTable(["trial", ...names], trials.map(one => [makeNumberCell(one, selection), ...one.values.map(makeCell)])));
  const pairs = data.parameters.filter(one => one.key in trial.params).map(one =>
    [one.name, String(readParameter(one, trial))]);
  data.others.forEach((name, at) => {
    if (trial.measured[at] !== null) pairs.push([name, formatNumber(trial.measured[at], DIGITS)]);
  });
  if (trial.run) pairs.push(["run folder", `trials/${trial.run}`]);
  for (const [name, value] of Object.entries(winner?.test ?? {}))
    pairs.push([name, `${formatNumber(value, DIGITS)} (measured once, at the end)`]);
  return makeSection(`${winner ? "Winner: trial" : "Best trial"} ${trial.number}`,
    data.bias ? make("p", {class: "soft small"}, data.bias) : null, makePairs(pairs));
}

/** Return the table of the trials that were trained again; null if there are none. */
function makeConfirmed({winner, names}) {
  const trials = winner?.confirmed ?? [];
  if (!trials.length) return null;
  const hasSpread = trials[0].values.length > 1;
  const columns = ["trial", ...trials[0].values.map((_, at) => `seed ${at + 1}`),
    ...(hasSpread ? ["mean", "standard deviation"] : [])];
  const rows = trials.map(({number, values, mean, spread}) => [number,
    ...[...values, ...(hasSpread ? [mean, spread] : [])].map(value => makeCell(value) ?? "failed")]);
  const caption = `${names[0]} of the best trials, trained again with other seeds.`;
  return makeSection("Confirmed", makeTable(columns, rows, {caption}));
}

const makeCell = value => isNumber(value) ? {value, text: formatNumber(value, DIGITS)} : value ?? null;

function makeNumberCell({number}, selection) {
  const select = () => selection.select(number);
  return {value: number, text: make("button", {type: "button", click: select}, String(number))};
}

/** Return the plots of all parameters. */
function makePlots(search) {
  const {data, finished, measured, isSingle, names} = search, plots = [];
  names.forEach((name, objective) => {
    const shares = data.importances[name];
    if (finished.length) plots.push(makeHistory(search, objective, shares ? "" : "wide"));
    if (finished.length && shares) plots.push(makeImportances(search, name, shares));
  });
  plots.push(makeTraining(search));
  const lines = isSingle ? measured : finished.filter(trial => trial.is_feasible);
  if (lines.length > 1) plots.push(makeParallel(search, lines));
  return plots.filter(Boolean);
}

/** Return the plot of the trials by two objectives; of three, one for each two of them. */
function makeFronts(search) {
  const {finished, names, data} = search;
  if (!finished.length || names.length < 2 || names.length > 3) return [];
  const of = finished.some(trial => !trial.is_feasible) ? ", of those that satisfy the constraints" : "";
  const pairs = names.length === 2 ? [[0, 1]] : [[0, 1], [0, 2], [1, 2]];
  return pairs.map(([a, b]) => {
    const marks = finished.map(trial => search.mark(trial, [[trial.values[a], trial.values[b]]],
      () => names.map((name, at) => [name, formatNumber(trial.values[at], DIGITS)])));
    for (const mark of marks) if (mark.kind === "finished") mark.kind = "other";
    const [x, y] = [a, b].map(at => new Axis(names[at], finished.map(trial => trial.values[at])));
    const title = ["Pareto front"], isOne = pairs.length === 1;
    if (!isOne) title.push(": ", isolate(names[a]), " and ", isolate(names[b]));
    const better = data.objectives.flatMap(({name, direction}, at) =>
      [at ? " and " : "", direction === "max" ? "higher " : "lower ", isolate(name)]);
    const note = ["No other trial has ", ...better, ` than a trial on the front${of}.`];
    return search.plot({title, note, marks, frame: makeFrame(x, y, isOne ? 320 : 240),
      keys: search.listKeys(marks), size: isOne ? "wide" : ""});
  });
}

function makeHistory(search, objective, size) {
  const {finished, measured, pruned, names} = search, name = names[objective];
  const isMax = search.data.objectives[objective].direction === "max", best = [];
  const marks = measured.map(trial => search.mark(trial, [[trial.number, search.read(trial, objective)]],
    () => [[name, formatNumber(search.read(trial, objective), DIGITS)]]));
  for (const {number, values: {[objective]: value}} of finished.filter(trial => trial.is_feasible)) {
    const last = best.at(-1)?.[1];
    if (last === undefined || (isMax ? value > last : value < last))
      best.push(...(last === undefined ? [] : [[number, last]]), [number, value]);
  }
  if (best.length) best.push([measured.at(-1).number, best.at(-1)[1]]);
  if (best.length) marks.push({trial: null, kind: "best-so-far", values: best, isLine: true});
  const [x, y] = [new Axis("trial", measured.map(trial => trial.number), {isLog: false}),
    new Axis(name, measured.map(trial => search.read(trial, objective)))];
  const note = ["Trials in the order they started, and the best finished one so far.",
    pruned.length ? " A pruned trial has its last value." : "",
    finished.some(trial => !trial.is_feasible) ? " The best one satisfies the constraints." : ""].join("");
  return search.plot({title: ["History of ", isolate(name)], note, marks, size, frame: makeFrame(x, y, 250),
    keys: search.listKeys(marks)});
}

function makeImportances({data}, name, shares) {
  const {finished, pruned} = data.importance_trials, largest = Math.max(...Object.values(shares));
  const of = pruned ? `${finished} finished and ${pruned} pruned trials (with the last value)`
    : `${finished} finished trials`;
  const rough = finished + pruned < ROUGH_FROM ? ` A rough estimate: it needs about ${ROUGH_FROM} trials.` : "";
  const rows = Object.entries(shares).map(([parameter, share]) => {
    const bar = make("span", {});
    bar.style.width = `${100 * share / largest}%`;
    return make("tr", {}, make("th", {scope: "row", title: parameter}, isolate(parameter)),
      make("td", {class: "bar-cell"}, bar), make("td", {class: "number-cell", title: String(share)},
        share < 0.01 ? "<0.01" : share.toFixed(2)));
  });
  return make("figure", {class: "card chart"}, make("figcaption", {}, make("h3", {}, "Importances for ", isolate(name)),
    make("p", {class: "soft small"}, `What distinguishes the best of ${of}, by PED-ANOVA.${rough}`)),
  make("table", {class: "bars"}, make("tbody", {}, rows)));
}

function makeTraining(search) {
  const {data, names: [name]} = search;
  const marks = data.trials.filter(trial => trial.state !== "failed").map(trial => {
    const values = Object.entries(trial.intermediate).filter(([, value]) => isNumber(value)).map(
      ([at, value]) => [Number(at), value]);
    const mark = search.mark(trial, values, at =>
      [["evaluation", String(values[at][0])], [name, formatNumber(values[at][1], DIGITS)]], {isLine: true});
    return {...mark, kind: mark.kind === "outside" ? "finished" : mark.kind,
      isDotted: ["running", "waiting"].includes(mark.kind)};
  }).filter(mark => mark.values.length);
  if (!marks.length) return null;
  const points = marks.flatMap(mark => mark.values);
  const frame = makeFrame(new Axis("evaluation", points.map(([at]) => at), {isLog: false, margin: 0.02}),
    new Axis(name, points.map(([, value]) => value)), 320);
  return search.plot({title: [isolate(name), " during training"], marks, frame, size: "wide",
    keys: search.listKeys(marks, true), note: "Each line is a trial; that of a pruned trial ends in a cross. " +
      "Click an entry of the legend to hide its lines."});
}

/** Return parallel coordinates: of one objective, with shades by rank; of several, with the front. */
function makeParallel(search, trials) {
  const {data, isSingle, names, parameters} = search;
  const rows = trials.map(trial => [...names.map((_, at) => search.read(trial, at)),
    ...parameters.map(({key}) => trial.params[key])]);
  const columns = [...names.map(name => ({key: name, labels: [], is_log: null})), ...parameters];
  const axes = columns.map(({key, labels, is_log: isLog}, at) =>
    new Axis(key, rows.map(row => row[at]), {labels, isLog, margin: 0}));
  const isMax = data.objectives[0].direction === "max";
  const ranks = [...new Set(rows.map(row => row[0]))].sort((a, b) => isMax ? a - b : b - a);
  const marks = trials.map((trial, number) => {
    const texts = () => axes.map((axis, at) => [axis.name, axis.format(rows[number][at])]);
    const mark = search.mark(trial, rows[number], texts, {isLine: true});
    if (!isSingle) return {...mark, kind: mark.kind === "finished" ? "other" : mark.kind};
    return {...mark, shade: shadeOf(ranks.indexOf(rows[number][0]), ranks.length),
      isDotted: trial.state === "pruned" || !trial.is_feasible};
  });
  const dotted = marks.some(mark => mark.isDotted) ? " Dotted are pruned trials, with their last values, " +
    "and those outside of a constraint." : "";
  const note = isSingle ? `Each line is a trial: its values on every axis. The color is its rank.${dotted}`
    : "Each line is a finished trial that satisfies the constraints, if there are any.";
  return search.plot({title: ["Parallel coordinates"], note, marks, frame: makeParallelFrame(axes), size: "wide",
    scale: isSingle ? makeScale("worst", "best") : null, keys: isSingle ? [] : search.listKeys(marks, true)});
}

/** Return the shade at an index of some. */
const shadeOf = (index, count) => Math.round((SHADES - 1) * index / Math.max(1, count - 1));

/** Return the legend of all shades. */
function makeScale(first, last) {
  const swatches = Array.from({length: SHADES}, (_, shade) =>
    draw("rect", {class: `shade-${shade}`, x: 14 * shade, width: 14, height: 10}));
  return make("span", {class: "small soft"}, first, " ",
    draw("svg", {class: "icon", width: 14 * SHADES, height: 10, "aria-hidden": "true"}, ...swatches), " ", last);
}

/** Return a plot of each parameter and each objective. */
function makeSlices(search) {
  const {names, measured, parameters, pruned} = search, last = measured.at(-1)?.number;
  if (measured.length < 2) return [];
  return names.flatMap((name, objective) => parameters.map(({key, labels, is_log: isLog}) => {
    const trials = measured.filter(trial => key in trial.params);
    const x = new Axis(key, trials.map(trial => trial.params[key]), {labels, isLog});
    const y = new Axis(name, trials.map(trial => search.read(trial, objective)));
    const marks = trials.map(trial => {
      const pair = [trial.params[key], search.read(trial, objective)], kind = search.kindOf(trial);
      const shade = ["finished", "pruned"].includes(kind) ? shadeOf(trial.number, last + 1) : undefined;
      return search.mark(trial, [pair], () => [[key, x.format(pair[0])], [name, y.format(pair[1])]], {shade});
    });
    const hasRings = marks.some(mark => mark.kind === "outside");
    const note = ["The later the trial, the stronger the color.",
      pruned.length ? " A cross is the last value of a pruned trial." : "",
      hasRings ? " A circle is a trial outside of a constraint." : ""].join("");
    const title = [isolate(key), " and ", isolate(name)];
    return search.plot({title, note, marks, frame: makeFrame(x, y, 190)});
  }));
}

function makeTrials({data, names, best, selection}) {
  if (!data.trials.length) return makeSection("Trials", make("p", {class: "soft small"}, "No trial has started."));
  const options = [...new Set(data.parameters.map(one => one.name))];
  const hasReasons = data.trials.some(trial => trial.reason);
  const rows = data.trials.map(trial => [
    makeNumberCell(trial, selection),
    {value: trial.state, text: make("span", {class: `state ${trial.state}`}, trial.state)},
    ...names.map((_, at) => makeCell(trial.values?.[at])),
    ...trial.measured.map(makeCell),
    trial.evaluations,
    trial.seconds === null ? null : {value: trial.seconds, text: formatDuration(trial.seconds)},
    ...options.map(option => {
      const found = data.parameters.find(({name, key}) => name === option && key in trial.params);
      const value = found ? readParameter(found, trial) : null;
      return found?.labels.length ? {value, text: String(value)} : makeCell(value);
    }),
    ...(hasReasons ? [trial.reason] : []),
  ]);
  const columns = ["trial", "state", ...names, ...data.others, "evaluations", "wall time", ...options,
    ...(hasReasons ? ["reason"] : [])];
  const caption = "Click a column to sort by it, and the number of a trial to select it. The run folder of " +
    "trial 7 is trials/0007.";
  const table = makeTable(columns, rows,
    {caption, mark: at => best.has(data.trials[at].number) ? "best" : null});
  table.querySelectorAll("tbody tr").forEach((row, at) => {
    const {number} = data.trials[at];
    selection.rows.set(number, row);
    row.addEventListener("pointerenter", () => selection.mark("hovered", number));
    row.addEventListener("pointerleave", () => selection.mark("hovered", null));
  });
  return makeSection("Trials", make("div", {class: hasReasons ? "trials reasons" : "trials"}, table));
}

/** Return the bar that names the selected trial. */
function makeBar({data, names, selection}) {
  const text = make("span", {role: "status"});
  const show = () => selection.rows.get(selection.shown.selected).scrollIntoView({block: "center"});
  const bar = make("div", {class: "card selected-trial", hidden: ""}, text,
    make("button", {type: "button", click: show}, "Show in the table"),
    make("button", {type: "button", click: () => selection.mark("selected", null)}, "Clear"));
  selection.listeners.push(number => {
    bar.hidden = number === null;
    const trial = data.trials.find(one => one.number === number);
    if (trial) text.replaceChildren(make("b", {}, `Trial ${number}`), `, ${trial.state}`,
      ...(trial.values ?? []).flatMap((value, at) => [" · ", isolate(names[at]), ` ${formatNumber(value, DIGITS)}`]));
  });
  return bar;
}

const shownSearch = showSearch(readData());
