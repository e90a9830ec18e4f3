// Plots of trials: SVG elements, which show and select the same trial in all plots.

const SHADES = 6;  // .shade-0 and so on in the style
const NEAR = 30;  // pixels from the mouse to a mark, up to which its trial is shown
const WIDE = 20;  // times the lowest value: from then on, an axis is logarithmic
const MANY = 100;  // lines, from which on they are thinner
const TICK_HEIGHT = 18;
const SLANTED_WIDTH = 130;  // pixels of a text below a plot
const MOST_CHARACTERS = 60;  // of a name in a plot; its heading has all
const context = document.createElement("canvas").getContext("2d");
// How marks are drawn, by their kind; later ones are above earlier ones.
const KINDS = {
  outside: {label: "outside of a constraint", shape: "ring"},
  other: {label: "other trials", shape: "dot"},
  pruned: {label: "pruned", shape: "cross"},
  finished: {label: "finished", shape: "dot"},
  waiting: {label: "waiting", shape: "ring"},
  running: {label: "running", shape: "ring"},
  "best-so-far": {label: "best so far", shape: "line"},
  best: {label: "best trial", shape: "dot"},
  front: {label: "Pareto front", shape: "dot"},
};
const ORDER = Object.keys(KINDS);

/** Return an SVG element. */
function draw(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const drawLine = (x1, y1, x2, y2, kind = "grid") => draw("line", {class: kind, x1, y1, x2, y2});

function measure(text) {
  context.font = "12px system-ui, sans-serif";
  return context.measureText(text).width;
}

/** Return a text that is at most some pixels wide. */
function shorten(text, width) {
  let [shown, count] = [text, Math.min(text.length, MOST_CHARACTERS)];
  while (count > 1 && measure(shown) > width) shown = cutMiddle(text, count -= 1);
  return shown;
}

/** Return a text with at most some characters, without its middle: names often differ at their ends. */
function cutMiddle(text, count = MOST_CHARACTERS) {
  const characters = Array.from(text);
  if (characters.length <= count) return text;
  const end = Math.floor(count / 2);
  return [...characters.slice(0, count - end), "…", ...characters.slice(characters.length - end)].join("");
}

/** Return the lowest and the highest of some numbers, of which there may be very many. */
function findRange(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}

/** Return a text in a plot; one that is shortened has all of it under the mouse. */
function drawText(text, attributes, width = Infinity) {
  const shown = shorten(text, width);
  return draw("text", attributes, shown, ...(shown === text ? [] : [draw("title", {}, text)]));
}

/** Return about `count` numbers, with steps of 1, 2 or 5 times a power of 10. */
function listTicks(low, high, count, isWhole) {
  const rough = (high - low || 1) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max([1, 2, 5, 10].find(one => one * power >= rough * 0.7) * power, isWhole ? 1 : 0);
  const first = Math.ceil(low / step - 1e-9), last = Math.floor(high / step + 1e-9);
  return Array.from({length: last - first + 1}, (_, at) => Number(((first + at) * step).toPrecision(12)));
}

/** Return ticks between two positive numbers, at powers of 10 or at 1, 2 and 5 times these. */
function listLogTicks(low, high, count) {
  const decades = Math.log10(high / low);
  if (decades < 0.7) return listTicks(low, high, count).filter(value => value > 0);
  const factors = decades <= Math.max(1.2, count / 3) ? [1, 2, 5] : [1];
  const every = Math.max(1, Math.ceil(decades / count));
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
  const powers = Array.from({length: last - first + 1}, (_, at) => first + at).filter(one => one % every === 0);
  return powers.flatMap(power => factors.map(factor => Number(`${factor}e${power}`)))
    .filter(value => value >= low * 0.999 && value <= high * 1.001);
}

function formatTick(value) {
  const size = Math.abs(value);
  if (size >= 1e4) return value.toLocaleString("en-US", {notation: "compact", maximumSignificantDigits: 4});
  return size && size < 1e-3 ? value.toExponential() : String(value);
}

/** Whether values need a logarithmic axis: a few large losses would hide the rest. */
const isWide = ([low, high]) => low > 0 && high > WIDE * low;

/** An axis: where its values are, from 0 to 1, and its ticks. */
class Axis {
  /**
   * name: what it shows. values: all that it has to show; undefined is that of a trial without it.
   * labels: of choices, whose values are indices. isLog: null is by the values.
   * margin: share of the axis at both ends.
   */
  constructor(name, values, {labels = [], isLog = null, margin = 0.05} = {}) {
    const present = values.filter(value => value !== undefined);
    const range = findRange(present);
    Object.assign(this, {name, labels, isLog: isLog ?? isWide(range), isWhole: present.every(Number.isInteger)});
    this.start = present.length < values.length ? 0.16 : 0;  // below are the trials without it
    const [low, high] = range.map(value => this.scale(value));
    const space = (high - low || Math.abs(high) || 1) * (high > low ? margin : 0.5);
    [this.low, this.high] = labels.length ? [-0.5, labels.length - 0.5] : [low - space, high + space];
  }

  scale(value) {
    return this.isLog ? Math.log10(value) : value;
  }

  locate(value) {
    if (value === undefined) return 0;
    const share = (this.scale(value) - this.low) / (this.high - this.low);
    return this.start + (1 - this.start) * share;
  }

  format(value) {
    if (value === undefined) return "not set";
    return this.labels.length ? String(this.labels[value]) : formatNumber(value, 5);
  }

  /** Return pairs of a position and a text; choices have one each. */
  listTicks(count) {
    const missing = this.start ? [[0, this.format(undefined)]] : [];
    if (this.labels.length) return [...missing, ...this.labels.map((_, at) => [this.locate(at), this.format(at)])];
    const [low, high] = this.isLog ? [10 ** this.low, 10 ** this.high] : [this.low, this.high];
    const values = this.isLog ? listLogTicks(low, high, count) : listTicks(low, high, count, this.isWhole);
    const texts = values.map(formatTick);
    const shown = new Set(texts).size === texts.length ? texts : values.map(String);
    return [...missing, ...values.map((value, at) => [this.locate(value), shown[at]])];
  }
}

/** Return the width of the widest of some texts. */
const measureAll = texts => findRange([0, ...texts.map(measure)])[1];

/** Draw texts below a plot, slanted if they are wide; return their height. */
function drawLabels(group, texts, positions, slot, y) {
  const isSlanted = measureAll(texts) > slot - 8, every = Math.ceil(15 / slot);
  texts.forEach((text, at) => {
    if (at % every) return;
    // A text that is slanted ends at its position: from the left edge, only so much fits.
    const width = isSlanted ? Math.min(SLANTED_WIDTH, (positions[at] - 4) / Math.cos(Math.PI / 6)) : slot;
    const attributes = isSlanted
      ? {"text-anchor": "end", transform: `translate(${positions[at] + 4} ${y - 2}) rotate(-30)`}
      : {"text-anchor": "middle", x: positions[at], y};
    group.append(drawText(text, {class: "tick", ...attributes}, width));
  });
  return TICK_HEIGHT + (isSlanted ? Math.min(SLANTED_WIDTH, measureAll(texts)) / 2 : 0);
}

/** Return a frame with two axes. */
function makeFrame(x, y, plotHeight) {
  return width => {
    const group = draw("g", {}), top = 26, bottom = top + plotHeight;
    const rows = y.listTicks(plotHeight / 38);
    const widest = Math.min(width / 3, measureAll(rows.map(([, text]) => text)));
    const left = widest + 10, right = width - 14;
    const [toX, toY] = [value => left + (right - left) * x.locate(value),
      value => bottom - plotHeight * y.locate(value)];
    for (const [at, text] of rows) {
      const height = bottom - plotHeight * at;
      group.append(drawLine(left, height, right, height),
        drawText(text, {class: "tick", "text-anchor": "end", x: left - 6, y: height + 4}, widest));
    }
    const columns = x.listTicks(Math.max(3, (right - left) / 60));
    const positions = columns.map(([at]) => left + (right - left) * at);
    for (const place of x.labels.length ? [] : positions) group.append(drawLine(place, top, place, bottom));
    const slot = (right - left) / Math.max(1, columns.length);
    const used = drawLabels(group, columns.map(([, text]) => text), positions, slot, bottom + 16);
    group.append(drawText(y.name, {class: "axis-name", x: 2, y: 13}, width - 4),
      drawText(x.name, {class: "axis-name", "text-anchor": "end", x: right, y: bottom + used + 16}, right));
    return {group, height: bottom + used + 22, locate: mark => mark.values.map(([a, b]) => [toX(a), toY(b)])};
  };
}

/** Return a frame with an axis for each value of a mark: side by side, or below each other. */
function makeParallelFrame(axes) {
  return width => ({isAbove: true, ...(width / axes.length < 90 ? stackAxes : alignAxes)(axes, width)});
}

function alignAxes(axes, width) {
  const group = draw("g", {}), slot = width / axes.length, [top, bottom] = [14, 314];
  const toX = at => slot * (at + 0.5), toY = share => bottom - (bottom - top) * share;
  axes.forEach((axis, at) => group.append(drawLine(toX(at), top, toX(at), bottom, "axis-line"),
    ...axis.listTicks(5).map(([share, text]) =>
      drawText(text, {class: "tick over", "text-anchor": "middle", x: toX(at), y: toY(share) + 4}, slot - 12))));
  const used = drawLabels(group, axes.map(axis => axis.name), axes.map((_, at) => toX(at)), slot, bottom + 22);
  return {group, height: bottom + used + 22,
    locate: mark => mark.values.map((value, at) => [toX(at), toY(axes[at].locate(value))])};
}

function stackAxes(axes, width) {
  const group = draw("g", {}), [left, right] = [8, width - 8];
  const toX = share => left + (right - left) * share, toY = at => 32 + 58 * at;
  axes.forEach((axis, at) => {
    const ticks = axis.listTicks(4), space = (right - left) / ticks.length;
    group.append(drawLine(left, toY(at), right, toY(at), "axis-line"),
      drawText(axis.name, {class: "axis-name over", x: left, y: toY(at) - 8}, right - left));
    for (const [share, text] of ticks) {
      const anchor = share > 0.9 ? "end" : share < 0.1 ? "start" : "middle";
      group.append(drawText(text, {class: "tick over", "text-anchor": anchor, x: toX(share), y: toY(at) + 15}, space));
    }
  });
  return {group, height: 58 * axes.length + 6,
    locate: mark => mark.values.map((value, at) => [toX(axes[at].locate(value)), toY(at)])};
}

/** Return the outline of a mark. */
function outline(shape, points) {
  if (shape === "line") return `M${points.map(point => point.map(one => one.toFixed(1)).join(" ")).join("L")}`;
  const [x, y] = points.at(-1).map(one => Number(one.toFixed(1)));
  if (shape === "cross") return `M${x - 3.5} ${y - 3.5}l7 7m-7 0l7 -7`;
  return `M${x - 4} ${y}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0`;
}

/** Draw a mark through points: a symbol, or a line, which ends in a cross if its trial was pruned. */
function drawMark({kind, isLine, isDotted, shade}, points) {
  const shapes = isLine && points.length > 1 ? ["line"] : [KINDS[kind].shape];
  if (shapes[0] === "line" && kind === "pruned" && !isDotted) shapes.push("cross");
  const classes = ["mark", kind, shapes[0], isDotted && "dotted", shade !== undefined && `shade-${shade}`];
  return draw("path", {class: classes.filter(Boolean).join(" "),
    d: shapes.map(shape => outline(shape, points)).join("")});
}

/** Return how far a point is from the part of a line between two others. */
function measureDistance([x, y], [x1, y1], [x2, y2]) {
  const length = (x2 - x1) ** 2 + (y2 - y1) ** 2;
  const share = length ? Math.max(0, Math.min(1, ((x - x1) * (x2 - x1) + (y - y1) * (y2 - y1)) / length)) : 0;
  return Math.hypot(x - x1 - share * (x2 - x1), y - y1 - share * (y2 - y1));
}

/** The trial that all plots and the table show. */
class Selection {
  constructor() {
    this.plots = [];
    this.rows = new Map();  // of the table, by number
    this.shown = {hovered: null, selected: null};
    this.listeners = [];
  }

  /** Mark a trial, or none, as "hovered" or "selected". */
  mark(name, number) {
    if (number === this.shown[name]) return;
    for (const [one, isMarked] of [[this.shown[name], false], [number, true]])
      for (const element of [...this.plots.map(plot => plot.elements.get(one)), this.rows.get(one)])
        element?.classList.toggle(name, isMarked);
    this.shown[name] = number;
    if (name !== "selected") return;
    document.body.classList.toggle("has-selection", number !== null);
    for (const plot of this.plots) plot.raise(number);
    for (const listener of this.listeners) listener(number);
  }

  /** Select a trial, or none if it is selected. */
  select(number) {
    this.mark("selected", number === this.shown.selected ? null : number);
  }
}

/** A plot of trials. */
class Plot {
  /**
   * title: what it shows, as texts and elements. note: how to read it. frame: positions its marks.
   * marks: {trial, kind, values, texts}, where the texts of each point are shown under the mouse;
   *   with isLine, it goes through all of its values. size: its class.
   * keys: kinds of marks that the legend explains. scale: of shades, for the legend.
   * what: a mark with a number shows.
   */
  constructor(selection, {title, note, frame, marks, keys = [], size = "", scale = null, what = "trial"}) {
    Object.assign(this, {selection, frame, hidden: new Set()});
    this.elements = new Map();  // by the number of the trial
    this.marks = [...marks].sort((a, b) => ORDER.indexOf(a.kind) - ORDER.indexOf(b.kind));
    this.title = title.map(part => part.textContent ?? part).join("");
    const count = marks.filter(mark => mark.trial !== null).length;
    this.svg = draw("svg", {tabindex: 0, role: "img", "aria-label": `${this.title}: ${count} ${what}s. ` +
      `Use the arrow keys to move, and Enter to select a ${what}.`});
    this.tip = make("div", {class: "tip", role: "status", hidden: ""});
    this.holder = make("div", {class: "drawing"}, this.svg, this.tip);
    const entries = keys.map(key => this.makeEntry(key));
    this.figure = make("figure", {class: `card chart ${size}`},
      make("figcaption", {}, make("h3", {}, title), make("p", {class: "soft small"}, note)),
      entries.length || scale ? make("div", {class: "legend"}, scale, entries) : null, this.holder);
    for (const [name, listen] of Object.entries({
      pointermove: event => this.show(this.findNearest(event)),
      pointerleave: () => this.show(null),
      blur: () => this.show(null),
      click: event => {
        const found = this.findNearest(event);
        this.show(found);
        this.select(found);
      },
      keydown: event => this.move(event),
    })) this.svg.addEventListener(name, listen);
    selection.plots.push(this);
    new ResizeObserver(() => this.resize()).observe(this.holder);
  }

  /** Return an entry of the legend, which hides and shows its marks. */
  makeEntry({kind, isLine}) {
    const hasLine = isLine || KINDS[kind].shape === "line";
    const icon = draw("svg", {class: "icon", width: 18, height: 12, "aria-hidden": "true"},
      drawMark({kind, isLine, isDotted: isLine && kind === "running"}, hasLine ? [[1, 6], [13, 6]] : [[9, 6]]));
    const toggle = () => {
      this.hidden[this.hidden.has(kind) ? "delete" : "add"](kind);
      entry.setAttribute("aria-pressed", !this.hidden.has(kind));
      this.redraw();
    };
    const entry = make("button", {type: "button", class: "entry", "aria-pressed": true, click: toggle},
      icon, KINDS[kind].label);
    return entry;
  }

  resize() {
    const width = Math.floor(this.holder.clientWidth);
    if (!width || width === this.width) return;
    this.width = width;
    this.redraw();
  }

  redraw() {
    const {group, height, locate, isAbove} = this.frame(this.width);
    this.elements.clear();
    this.placed = this.marks.filter(mark => !this.hidden.has(mark.kind)).map(mark => {
      const points = locate(mark), element = drawMark(mark, points);
      if (mark.trial !== null) this.elements.set(mark.trial, element);
      return {mark, points, element};
    });
    for (const [name, number] of Object.entries(this.selection.shown))
      this.elements.get(number)?.classList.add(name);
    this.body = draw("g", {class: this.placed.length > MANY ? "many" : ""},
      ...this.placed.map(one => one.element));
    this.focus = draw("circle", {class: "focus", r: 6, visibility: "hidden"});
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${height}`);
    this.svg.replaceChildren(...(isAbove ? [this.body, group] : [group, this.body]), this.focus);
    this.raise(this.selection.shown.selected);
  }

  /** Draw a trial above the others. */
  raise(number) {
    if (this.elements.has(number)) this.body.append(this.elements.get(number));
  }

  /** Return the mark and the point that are nearest to the mouse; null if none is near. */
  findNearest(event) {
    const box = this.svg.getBoundingClientRect(), scale = this.width / box.width;
    const mouse = [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
    let nearest = null, least = NEAR;
    for (const placed of this.placed) {
      const {mark, points} = placed;
      if (mark.trial === null) continue;
      const far = points.length === 1 ? measureDistance(mouse, points[0], points[0])
        : findRange(points.slice(1).map((point, at) => measureDistance(mouse, points[at], point)))[0];
      if (far <= least) [nearest, least] = [placed, far];
    }
    if (nearest === null) return null;
    const gaps = nearest.points.map(point => measureDistance(mouse, point, point));
    return {...nearest, at: gaps.indexOf(findRange(gaps)[0])};
  }

  /** Show the trial of a mark beside one of its points. */
  show(found) {
    this.selection.mark("hovered", found?.mark.trial ?? null);
    this.tip.hidden = found === null;
    this.focus?.setAttribute("visibility", found === null ? "hidden" : "visible");
    if (found === null) return;
    const {mark, points, at} = found, [x, y] = points[at];
    this.focus.setAttribute("cx", x);
    this.focus.setAttribute("cy", y);
    this.tip.replaceChildren(make("b", {}, mark.heading), ...mark.texts(at).map(([name, text]) =>
      make("div", {}, make("bdi", {class: "soft"}, cutMiddle(name)), ": ", make("bdi", {}, cutMiddle(text)))));
    const scale = this.svg.getBoundingClientRect().width / this.width, isRight = x > this.width / 2;
    this.tip.style.left = isRight ? "auto" : `${x * scale + 14}px`;
    this.tip.style.right = isRight ? `${(this.width - x) * scale + 14}px` : "auto";
    this.tip.style.top = `${Math.max(0, y * scale - 20)}px`;
  }

  select(found) {
    this.selection.select(found?.mark.trial ?? this.selection.shown.selected);
  }

  /** Move through the trials by the keyboard, from left to right. */
  move(event) {
    const order = this.placed.filter(({mark}) => mark.trial !== null);
    if (!order.length || event.ctrlKey || event.metaKey || event.altKey) return;
    const endOf = ({points}) => points.at(-1)[0];
    order.sort((a, b) => endOf(a) - endOf(b) || a.mark.trial - b.mark.trial);
    const at = order.findIndex(({mark}) => mark.trial === this.selection.shown.hovered);
    const [before, after] = [Math.max(0, at - 1), Math.min(order.length - 1, at + 1)];
    const next = {ArrowRight: after, ArrowDown: after, ArrowLeft: before, ArrowUp: before, Home: 0,
      End: order.length - 1}[event.key];
    if (next !== undefined) this.show({...order[next], at: order[next].points.length - 1});
    else if (event.key === "Enter" || event.key === " ") this.select(order[at] ?? null);
    else return;
    event.preventDefault();
  }
}
