// Charts with one cursor, one zoom and one axis for all.

const FLAT = 1e-5;  // of the values: a curve with less between them is drawn as a constant
const COLORS = 8;  // --series-0 and so on in the style
const MOST_LOST = 500;  // steps of a curve whose values are not finite, as it grows
const DASHES = [[], [7, 4], [2, 3]];  // of curves beyond the colors
const POINTS_UNTIL = 120;  // values, up to which a curve has a point at each
const SMOOTHED_FROM = 500;  // values
const MOST_TABLE_ROWS = 1000;
const POWERS = Array.from({length: 50}, (_, at) => 2 ** at);  // between ticks of bytes
const ARRAYS = {f4: Float32Array, f8: Float64Array, u2: Uint16Array, u4: Uint32Array};
const AXES = {step: "step", epoch: "epoch", samples: "samples", seconds: "time of training"};

/** Return the numbers of an encoded array. */
function decode({type, base64}) {
  const bytes = Uint8Array.from(atob(base64), character => character.charCodeAt(0));
  return new ARRAYS[type](bytes.buffer);
}

/** Return integers that rise, from their differences. */
function decodeSteps(encoded) {
  const steps = new Float64Array(encoded.count);
  let step = encoded.first;
  if (encoded.count) steps[0] = step;
  decode(encoded).forEach((difference, at) => { steps[at + 1] = step += difference; });
  return steps;
}

/** Return the exponential average of values, without its bias to the first ones; NaN where one is. */
function smooth(values, weight) {
  let sum = 0, total = 0;
  return Float64Array.from(values, value => {
    if (Number.isNaN(value)) return NaN;
    sum = weight * sum + (1 - weight) * value;
    total = weight * total + 1 - weight;
    return sum / total;
  });
}

/** Return the shortest number that is the same in 32 bits: pages have most values in so many. */
function shorten32(value) {
  if (Number.isInteger(value)) return value;
  const found = [6, 7, 8].map(digits => Number(value.toPrecision(digits))).find(
    short => Math.fround(short) === value);
  return found ?? value;
}

/** Return the steps and values of a line whose values are wanted. */
function keepSome({steps, values}, isWanted) {
  return {steps: steps.filter((_, at) => isWanted(values[at])), values: values.filter(isWanted)};
}

/** Return two arrays of numbers in one. */
function join(one, other) {
  const joined = new Float64Array(one.length + other.length);
  joined.set(one);
  joined.set(other, one.length);
  return joined;
}

/** What all charts of a page share. */
class View {
  /**
   * data: of the page: "axes", of each run what its steps are in other units; and the "marks" of a
   * single run. kind: the class of the charts.
   */
  constructor({axes, marks = [], live = null}, kind) {
    this.axes = axes;
    this.marks = marks;
    this.kind = kind;
    this.isLive = live !== null;
    this.grid = make("div", {class: "charts"});
    this.unit = "step";
    this.isLog = false;
    this.weight = 0.8;
    this.hidden = new Set();  // kinds of marks
    this.range = null;  // of the horizontal axis; null is all of it
    this.charts = [];
    this.observer = new IntersectionObserver(entries => {
      for (const {target, isIntersecting} of entries) target.chart.see(isIntersecting);
    }, {rootMargin: "100px"});
  }

  /** Show more charts. */
  add(charts) {
    for (const chart of charts) this.grid.append(new this.kind(this, chart).figure);
  }

  /** Take data that are whole: each chart that is shown already stays where it is. */
  renew({axes = this.axes, marks = this.marks, charts}) {
    Object.assign(this, {axes, marks});
    if (charts) {
      const byTitle = new Map(charts.map(chart => [chart.title, chart]));
      for (const chart of [...this.charts]) {
        if (byTitle.has(chart.title)) chart.renew(byTitle.get(chart.title));
        else chart.remove();
        byTitle.delete(chart.title);
      }
      this.add(byTitle.values());
    }
    this.showControls?.();
    this.redraw();
  }

  /** Take what charts grow by. */
  grow(increments) {
    const grown = new Set(), byTitle = new Map(this.charts.map(chart => [chart.title, chart]));
    for (const {charts, axes, marks = []} of increments) {
      this.marks.push(...marks);
      for (const [run, ends] of Object.entries(axes))
        for (const [name, values] of Object.entries(ends)) this.axes[run][name].push(...values);
      for (const increment of charts) {
        const chart = byTitle.get(increment.title);
        if (chart) grown.add(chart.grow(increment));
        else this.add([increment]);
        if (!chart) byTitle.set(increment.title, this.charts.at(-1));
      }
    }
    this.showControls?.();
    for (const chart of this.charts) {
      if (grown.has(chart)) chart.change();
      else chart.fit();
    }
  }

  /** Return steps in the unit of the axis, between what is known of some of them. */
  place(steps, run = 0) {
    if (this.unit === "step") return Array.from(steps);
    const {steps: known, [this.unit]: values} = this.axes[run];
    let at = 0;
    return Array.from(steps, step => {
      while (at < known.length && known[at] < step) at += 1;
      if (at === known.length) return values[at - 1] ?? 0;
      const [from, start] = at ? [known[at - 1], values[at - 1]] : [0, 0];
      return start + (values[at] - start) * (step - from) / (known[at] - from || 1);
    });
  }

  /** Show a range of the horizontal axis in all charts; null is all of it. */
  zoom(range) {
    this.range = range;
    for (const chart of this.charts) chart.fit();
  }

  set(name, value) {
    this[name] = value;
    if (name === "unit") this.range = null;
    this.redraw();
  }

  /** Draw the charts that are seen again now, and the others when they are seen. */
  redraw() {
    for (const chart of this.charts) chart.change();
  }

  formatPlace(value) {
    if (this.unit === "seconds") return formatDuration(value);
    return this.unit === "epoch" ? formatNumber(value) : Math.round(value).toLocaleString("en-US");
  }
}

/** Return the settings of all charts. */
function makeControls(view, ...more) {
  const select = make("select", {id: "unit", change: () => view.set("unit", select.value)},
    Object.entries(AXES).filter(([unit]) => unit === "step" || view.isLive || view.axes.some(axis => axis.steps.length)).map(
      ([unit, label]) => make("option", {value: unit}, label)));
  const log = make("input", {type: "checkbox", change: () => view.set("isLog", log.checked)});
  const weight = make("input", {type: "range", min: 0, max: 0.99, step: 0.01, value: view.weight,
    input: () => view.set("weight", Number(weight.value))});
  const kinds = make("span", {class: "kinds"}), shown = new Set();
  const addKind = kind => {
    const box = make("input", {type: "checkbox", change: () => {
      view.hidden[box.checked ? "delete" : "add"](kind);
      view.set("hidden", view.hidden);
    }});
    box.checked = true;
    kinds.append(make("label", {class: `mark ${kind}`}, box, MARKS[kind]?.[1] ?? kind));
    shown.add(kind);
  };
  const controls = make("div", {class: "controls card"},
    make("label", {}, "axis ", select), make("label", {}, log, "logarithmic"),
    make("label", {}, "smoothing ", weight), kinds, more,
    make("button", {type: "button", click: () => view.zoom(null)}, "Show all"),
    make("span", {class: "soft small"}, "Drag to zoom; double-click to show all."));
  view.showControls = () => {
    controls.hidden = !view.charts.length;
    for (const {kind} of view.marks) if (!shown.has(kind)) addKind(kind);
  };
  view.showControls();
  return controls;
}

/** Return charts below their settings; a text if there are none. */
function makeCharts(view, charts, text, ...more) {
  view.add(charts);
  const controls = makeControls(view, ...more), show = view.showControls;
  const empty = text ? makeSection("Curves", make("p", {}, text)) : document.createTextNode("");
  view.showControls = () => {
    show();
    empty.hidden = view.charts.length > 0;
  };
  view.showControls();
  return [empty, make("div", {}, controls, view.grid)];  // the settings stay in sight as long as charts do
}

// The color, the name, and the shape of each kind of mark: a triangle, a square or a line.
const MARKS = {
  checkpoint: ["--soft", "checkpoints", "square"], evaluation: ["--accent", "evaluations", "line"],
  resume: ["--live", "resumes", "triangle"], restart: ["--live", "restarts", "triangle"],
  branch: ["--live", "start from another run", "triangle"],
  rollback: ["--warning", "rollbacks", "triangle"], spike: ["--warning", "spikes", "triangle"],
  skipped: ["--warning", "skipped steps", "line"], incident: ["--bad", "incidents", "triangle"],
};

/** A chart: a figure with its legend, and a table behind it. */
class Chart {
  constructor(view, {title, unit, is_noisy, limits = {}, about = "", curves}) {
    Object.assign(this, {view, title, unit, is_noisy, limits, about});
    this.curves = curves.map((curve, number) => ({number, isShown: true, ...curve}));
    [this.plot, this.drawnAs] = [null, null];
    this.holder = make("div", {class: "plot"});
    this.legend = make("div", {class: "legend"});
    this.figure = make("figure", {class: "card chart", tabindex: 0, keydown: event => this.move(event)},
      make("figcaption", {}, make("h3", {}, title), about ? make("p", {class: "soft small"}, about) : null),
      this.legend, this.holder, makeDetails("Table", () => this.makeTable()));
    this.figure.chart = this;
    this.isSeen = false;
    this.notes = make("div", {class: "soft small note"});
    this.fillLegend();
    this.describe();
    view.charts.push(this);
    view.observer.observe(this.figure);
    this.follow = () => this.change(document.documentElement.classList.contains("printed"));
    redrawn.add(this.follow);
    new ResizeObserver(() => this.resize()).observe(this.holder);
  }

  /** Describe the curves for those who hear the page. */
  describe() {
    this.figure.setAttribute("aria-label", `${this.title}: ${this.curves.map(describeCurve).join("; ")}`);
  }

  fillLegend() {
    this.values = this.curves.map(curve => this.makeEntry(curve));
    this.legend.replaceChildren(...this.values.map(value => value.parentNode), this.notes);
  }

  remove() {
    this.view.charts.splice(this.view.charts.indexOf(this), 1);
    this.view.observer.unobserve(this.figure);
    redrawn.delete(this.follow);
    this.figure.remove();
  }

  /** Take other curves; those that are hidden stay so. */
  renew({curves, limits = {}}) {
    const hidden = new Set(this.curves.filter(curve => !curve.isShown).map(curve => curve.name));
    this.limits = limits;
    this.curves = curves.map((curve, number) => ({number, isShown: !hidden.has(curve.name), ...curve}));
    this.fillLegend();
    this.forgetTable();
  }

  /** Take more points and curves; return the chart. */
  grow({curves}) {
    const byName = new Map(this.curves.map(curve => [curve.name, curve]));
    const others = curves.filter(increment => !byName.has(increment.name));
    for (const increment of curves)
      if (byName.has(increment.name)) extend(this.decode(byName.get(increment.name)), this.decode(increment));
    this.curves.push(...others.map((curve, at) => ({number: byName.size + at, isShown: true, ...curve})));
    if (others.length) this.fillLegend();
    this.forgetTable();
    return this;
  }

  /** Have the table made again when it is opened again. */
  forgetTable() {
    const details = this.figure.querySelector("details");
    if (!details.open) details.replaceChildren(details.firstChild);
  }

  /** Return where the value of a curve is shown, within its entry of the legend. */
  makeEntry(curve) {
    const value = make("span", {class: "value"});
    const toggle = () => {
      curve.isShown = !curve.isShown;
      entry.setAttribute("aria-pressed", curve.isShown);
      this.change();
    };
    const entry = make("button", {type: "button", class: "entry", "aria-pressed": curve.isShown, click: toggle,
      title: describeCurve(curve)}, make("i", {class: `swatch series-${curve.number % COLORS}`}),
      curve.name, " ", value);
    return value;
  }

  decode(curve) {
    curve.at ??= decodeSteps(curve.steps);
    curve.y ??= decode(curve.values);
    curve.meanAt ??= decodeSteps(curve.mean_steps);
    curve.mean ??= decode(curve.means);
    return curve;
  }

  /** Return the lines of a curve: raw, and smoothed if it is long. */
  makeLines(curve) {
    const {view} = this, isLong = this.is_noisy && curve.count > SMOOTHED_FROM && view.weight > 0;
    const color = colorOf(`--series-${curve.number % COLORS}`);
    const dash = DASHES[Math.floor(curve.number / COLORS) % DASHES.length];
    const lines = [{steps: curve.at, values: curve.y, curve, run: curve.run,
      series: {stroke: isLong ? `${color}55` : color, width: isLong ? 1 : 1.6, dash}}];
    if (isLong) {
      const hasMeans = curve.mean.length > 0;
      lines.push({run: curve.run, steps: hasMeans ? curve.meanAt : curve.at,
        values: smooth(hasMeans ? curve.mean : curve.y, view.weight),
        series: {stroke: color, width: 2, dash}});
    }
    return lines;
  }

  /** Note whether the chart is in the window; draw it if it is not drawn yet. */
  see(isSeen) {
    this.isSeen = isSeen;
    if (isSeen && !this.isCurrent) this.redraw();
  }

  /** Draw again, now if the chart is seen or printed, and else when it is seen. */
  change(isNow = this.isSeen) {
    this.isCurrent = false;
    if (isNow) this.redraw();
  }

  /** Return the lines of all curves that are shown; their steps are shared where they are the same. */
  listLines() {
    return this.curves.filter(curve => curve.isShown).flatMap(
      curve => this.makeLines(this.decode(curve)));
  }

  redraw() {
    this.isCurrent = true;
    const {view} = this, isDrawn = value => Number.isFinite(value) && (!view.isLog || value > 0);
    // A table for each array of steps; those of different runs are at different positions.
    const tables = new Map();
    for (const line of this.listLines()) {
      const run = view.unit === "step" ? 0 : line.run ?? 0;
      // Steps after the last log point share a position, at which only the last one would be drawn.
      const {steps, values} = view.unit === "step" ? line : keepSome(line, isDrawn);
      const ofRun = tables.get(run) ?? tables.set(run, new Map()).get(run);
      const table = ofRun.get(steps) ?? ofRun.set(steps, {lines: [],
        columns: [view.place(steps, run)]}).get(steps);
      table.lines.push(line);
      table.columns.push(Array.from(values, value => isDrawn(value) ? value : null));
    }
    const all = [...tables.values()].flatMap(ofRun => [...ofRun.values()]);
    this.lines = all.flatMap(table => table.lines);
    const columns = all.map(table => table.columns);
    const data = columns.length > 1 ? uPlot.join(columns) : columns[0] ?? [[], []];
    const options = this.makeOptions(), drawnAs = JSON.stringify([options, view.isLog, view.unit]);
    this.note();
    if (drawnAs === this.drawnAs) {
      this.plot.setData(data, false);
      this.showValues(this.plot.cursor.idx);
    } else {
      this.plot?.destroy();
      this.plot = new uPlot(options, data, this.holder);
      this.drawnAs = drawnAs;
    }
    this.fit();
  }

  /** Show what is not drawn. */
  note() {
    const texts = this.curves.filter(curve => curve.not_finite.count).map(curve =>
      `${curve.name}: ${formatNumber(curve.not_finite.count)} values are not finite, first in step ` +
      formatNumber(curve.not_finite.steps[0]));
    const hidden = this.view.isLog ? this.curves.filter(curve => curve.lowest?.value <= 0) : [];
    texts.push(...hidden.map(curve => `${curve.name}: values up to 0 are not on a logarithmic axis`));
    this.notes.textContent = texts.join(". ");
    this.describe();
    this.showValues(null);
  }

  makeOptions() {
    const {view} = this, [line, soft] = [colorOf("--line"), colorOf("--soft")];
    const axis = {stroke: soft, grid: {stroke: line, width: 1}, ticks: {stroke: line, width: 1},
      font: "12px system-ui, sans-serif"};
    const format = (_, values) => values.map(value => value === null ? "" :
      formatValue(value, this.unit));
    return {
      width: Math.max(200, this.holder.clientWidth), height: 240, legend: {show: false}, padding: [8, 28, 0, 0],
      cursor: {sync: {key: "charts", scales: ["x", null]}, drag: {x: true, y: false, setScale: false},
        points: {size: 7}, bind: {dblclick: () => () => view.zoom(null)}},
      scales: {x: {time: false}, y: {distr: view.isLog ? 3 : 1, range: this.makeRange()}},
      axes: [{...axis, values: (_, values) => values.map(value => view.formatPlace(value)), space: 90},
        {...axis, values: format, size: 76, ...(this.unit === "bytes" ? {incrs: POWERS} : {})}],
      series: [{}, ...this.lines.map(({series, curve, count = curve?.count}) => ({...series, spanGaps: true,
        points: {show: count <= POINTS_UNTIL, size: 5}}))],
      bands: this.listBands(),
      hooks: {
        draw: [plot => this.drawMarks(plot)],
        setCursor: [plot => this.showValues(plot.cursor.idx)],
        setSelect: [plot => {
          const {left, width} = plot.select;
          plot.setSelect({left: 0, width: 0, top: 0, height: 0}, false);
          if (width > 2) view.zoom([plot.posToVal(left, "x"), plot.posToVal(left + width, "x")]);
        }],
      },
    };
  }

  /** Return the areas between lines, by their numbers. */
  listBands() {
    return [];
  }

  /** Return how the vertical axis is chosen: all values, with a margin, and the limits near them. */
  makeRange() {
    if (this.view.isLog) return (plot, low, high) => low === null ? [0.1, 10] : uPlot.rangeLog(low, high, 10, false);
    return (plot, low, high) => {
      if (low === null) return [0, 1];
      const size = Math.max(Math.abs(low), Math.abs(high)) || 1;
      const margin = 0.06 * (high - low > FLAT * size ? high - low : size);
      const isShare = this.unit !== "" && low >= 0;
      return [isShare ? 0 : low - margin, high + margin];
    };
  }

  /** Show the range that all charts show. */
  fit() {
    if (!this.plot) return;
    const [low, high] = this.view.range ?? this.findRange();
    this.plot.setScale("x", {min: low, max: high === low ? low + 1 : high});
  }

  /** Return the range that has all charts of the page. */
  findRange() {
    const {view} = this, runs = new Map();
    for (const {curves} of view.charts) for (const {run = 0, last} of curves)
      if (last) runs.set(run, Math.max(last.step, runs.get(run) ?? 0));
    const ends = [...runs].flatMap(([run, step]) => view.place([view.axes[run].steps[0] ?? 0, step], run));
    return ends.length ? [Math.min(...ends), Math.max(...ends)] : [0, 1];
  }

  resize() {
    const width = this.holder.clientWidth;
    if (this.plot && width && Math.abs(width - this.plot.width) > 1)
      this.plot.setSize({width, height: 240});
  }

  /** Draw the limits, the steps that are not finite, and the marks. */
  drawMarks(plot) {
    const {ctx: context, bbox} = plot, scale = devicePixelRatio;
    context.save();
    for (const [name, value] of Object.entries(this.limits)) {
      const y = plot.valToPos(value, "y", true);
      if (y < bbox.top || y > bbox.top + bbox.height) continue;
      context.strokeStyle = context.fillStyle = colorOf("--warning");
      context.setLineDash([6 * scale, 4 * scale]);
      context.beginPath();
      context.moveTo(bbox.left, y);
      context.lineTo(bbox.left + bbox.width, y);
      context.stroke();
      context.font = `${11 * scale}px system-ui, sans-serif`;
      [context.textAlign, context.textBaseline] = ["left", "alphabetic"];
      context.fillText(`${name} ${formatNumber(value)}`, bbox.left + 6 * scale, y - 4 * scale);
    }
    context.setLineDash([]);
    this.drawn = [];
    const lost = this.curves.filter(curve => curve.isShown).flatMap(({name, run, not_finite}) =>
      not_finite.steps.map(step => ({kind: "incident", step, run, text: `${name} is not finite`})));
    const marks = [...this.view.marks.filter(mark => !this.view.hidden.has(mark.kind)), ...lost];
    const filled = new Set();  // pixels of each kind: there may be thousands of marks
    for (const [run, ofRun] of Map.groupBy(marks.sort((a, b) => a.step - b.step), mark => mark.run ?? 0)) {
      const places = this.view.place(ofRun.map(mark => mark.step), run);
      ofRun.forEach((mark, at) => {
        const x = plot.valToPos(places[at], "x", true), pixel = `${mark.kind} ${Math.round(x)}`;
        if (x < bbox.left - 1 || x > bbox.left + bbox.width + 1) return;
        this.drawn.push({...mark, x: x / scale - bbox.left / scale});
        if (!filled.has(pixel)) drawMark(context, mark.kind, x, bbox.top + bbox.height, 4 * scale);
        filled.add(pixel);
      });
    }
    context.restore();
  }

  /** Show the values at the cursor, or the last ones, and the marks near it. */
  showValues(index) {
    const isAt = index !== null && index !== undefined && this.plot;
    this.curves.forEach((curve, number) => {
      const line = this.lines?.findIndex(one => one.curve === curve) ?? -1;
      let value = curve.last?.value, suffix = "";
      if (isAt && line >= 0) {
        let at = index;
        const column = this.plot.data[line + 1];
        while (at >= 0 && (column[at] === null || column[at] === undefined)) at -= 1;
        value = column[at];
      }
      this.values[number].textContent = curve.last && value !== undefined ? formatValue(value, this.unit) : "";
    });
    if (!isAt) return;
    const near = (this.drawn ?? []).filter(mark => Math.abs(mark.x - this.plot.cursor.left) < 5);
    const place = `${AXES[this.view.unit]} ${this.view.formatPlace(this.plot.data[0][index])}`;
    this.notes.textContent = [place, ...new Set(near.map(mark => mark.text))].slice(0, 4).join(" · ");
  }

  /** Move the cursor and the range by the keyboard. */
  move(event) {
    const {plot, view} = this, {min, max} = plot?.scales.x ?? {};
    if (!plot || event.target !== this.figure) return;
    const width = plot.over.clientWidth, at = Math.max(0, plot.cursor.left ?? 0);
    const keys = {
      ArrowLeft: () => plot.setCursor({left: Math.max(0, at - width / 50), top: 10}),
      ArrowRight: () => plot.setCursor({left: Math.min(width - 1, at + width / 50), top: 10}),
      "+": () => view.zoom([min + (max - min) / 4, max - (max - min) / 4]),
      "-": () => view.zoom([min - (max - min) / 2, max + (max - min) / 2]),
      Escape: () => view.zoom(null), 0: () => view.zoom(null),
    };
    if (keys[event.key] && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      keys[event.key]();
    }
  }

  /** Return the values as a table; a long one has some of them. */
  makeTable() {
    const rows = new Map();
    const curves = this.curves.map(curve => this.decode(curve));
    curves.forEach((curve, number) => curve.at.forEach((step, at) => {
      if (Number.isNaN(curve.y[at])) return;
      if (!rows.has(step)) rows.set(step, Array(curves.length).fill(null));
      rows.get(step)[number] = shorten32(curve.y[at]);
    }));
    const steps = [...rows.keys()].sort((a, b) => a - b);
    const every = Math.ceil(steps.length / MOST_TABLE_ROWS);
    const chosen = steps.filter((_, at) => at % every === 0 || at === steps.length - 1);
    const most = [["last", "last"], ["lowest", "lowest"], ["highest", "highest"]];
    return make("div", {},
      makeTable(["curve", "values", ...most.map(([label]) => label), "not finite"],
        this.curves.map(curve => [curve.name, curve.count, ...most.map(([, key]) => curve[key]
          ? {value: curve[key].value, text: `${formatValue(curve[key].value, this.unit)} (step ${formatNumber(curve[key].step)})`}
          : null), curve.not_finite.count]), {caption: `${this.title}, in short`}),
      makeTable(["step", ...curves.map(curve => curve.name)],
        chosen.map(step => [step, ...rows.get(step)]), {caption: every > 1
          ? `${this.title}: one of ${every} points of the chart` : this.title}));
  }
}

function drawMark(context, kind, x, bottom, size) {
  const [color, , shape] = MARKS[kind] ?? ["--soft", kind, "line"];
  context.fillStyle = context.strokeStyle = colorOf(color);
  context.beginPath();
  if (shape === "square") {
    context.rect(x - size / 2, bottom - size, size, size);
  } else if (shape === "triangle") {
    context.moveTo(x, bottom - 2.5 * size);
    context.lineTo(x + size, bottom);
    context.lineTo(x - size, bottom);
  } else {
    context.rect(x - size / 8, bottom - 1.5 * size, size / 4, 1.5 * size);
  }
  context.fill();
}

/** Add to a curve what it grows by. */
function extend(curve, increment) {
  if (curve.mean.length) {  // a increment with few values has no means
    const [at, values] = increment.mean.length ? [increment.meanAt, increment.mean] : [increment.at, increment.y];
    [curve.meanAt, curve.mean] = [join(curve.meanAt, at), join(curve.mean, values)];
  }
  [curve.at, curve.y] = [join(curve.at, increment.at), join(curve.y, increment.y)];
  const pick = (one, other, sign) => one && other ? sign * (other.value - one.value) > 0 ? other : one : one ?? other;
  curve.lowest = pick(curve.lowest, increment.lowest, -1);
  curve.highest = pick(curve.highest, increment.highest, 1);
  curve.last = increment.last ?? curve.last;
  curve.count += increment.count;
  curve.not_finite.count += increment.not_finite.count;
  curve.not_finite.steps.push(...increment.not_finite.steps.slice(0, MOST_LOST - curve.not_finite.steps.length));
}

/** Return a sentence about a curve. */
function describeCurve(curve) {
  if (!curve.last) return `${curve.name} has no values`;
  const parts = ["last", "lowest", "highest"].filter(key => curve[key]).map(key =>
    `${key} ${formatNumber(curve[key].value)} in step ${formatNumber(curve[key].step)}`);
  return `${curve.name}: ${parts.join(", ")}`;
}
