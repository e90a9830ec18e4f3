// The page of a run.

/** Show a run; return how the page takes what is new. */
function showRun(data) {
  const view = new View(data, Chart), parts = new Parts(data), add = parts.add.bind(parts);
  const progress = ["state", "reason", "step", "total_steps"];
  showPage(data.run, add(progress, describeProgress),
    add([...progress, "best", "time", "final", "findings", "incidents"], makeNumbers),
    make("div", {class: "columns"},
      add(["facts"], ({facts}) => makeSection("What was trained", makePairs(facts))),
      add(["time"], ({time}) => makeSection("Where the time went", makeTimes(time)))),
    add(["curve"], ({curve}) => makeSection("Curve", curve.map(makeState))),
    add(["findings"], ({findings}) => makeSection("Findings", findings.map(makeFinding))),
    add(["incidents"], ({incidents}) => makeSection("Steps that were not finite", incidents.map(incident =>
      make("div", {class: "finding error"}, make("p", {}, incident.text), makeCommand(incident.command))))),
    add(["memory"], ({memory}) => makeSection("Memory that ran out", memory.map(({text, path}) =>
      make("div", {class: "finding error"}, text.split("\n").map(line => make("p", {}, line)), make("p", {class: "soft small"}, path))))),
    add(["commands"], ({commands}) => makeSection("Next", commands.map(({what, command}) =>
      make("div", {}, make("p", {class: "soft small"}, what), makeCommand(command))))),
    makeCharts(view, data.charts, "No step has been recorded yet."),
    add(["omitted", "omitted_charts"], describeOmitted),
    add(["regions"], ({regions}) => makeRegions(regions)),
    add(["predictions"], ({predictions}) => makePredictions(predictions)),
    add(["range_tests"], ({range_tests: found}) => makeRangeTests(found)),
    add(["tuned"], ({tuned}) => makeSection("What surestep tune measured", tuned ? [
      makeTable(tuned.columns, tuned.rows, {caption: "rungs"}), make("p", {class: "soft small"}, tuned.about)] : null)),
    add(["plan"], ({plan}) => makeSection("Options", plan.length ? makeFilteredTable(["option", "value", "reason"],
      plan.map(({option, value, reason}) => [option, JSON.stringify(value), reason ?? ""]),
      "options with their reasons") : null)),
    add(["changes"], ({changes}) => makeSection("Changed when the run resumed", changes.length ? makeTable(
      ["name", "before", "now", "effect", "reason"], changes.map(({name, before, now, effect, reason}) =>
        [name, JSON.stringify(before), JSON.stringify(now), effect ?? "", reason ?? ""])) : null)),
    add(["environment"], ({environment}) => makeSection("Environment", Object.keys(environment).length
      ? makePairs(flatten(environment)) : null)),
    makeFooter(data));
  return {parts, view};
}

const describeStep = ({step, total_steps: total}) => step === null ? "no steps yet"
  : `step ${formatNumber(step)}${total ? ` of ${formatNumber(total)}` : ""}`;

function describeProgress(data) {
  return make("span", {}, `${data.state}${data.reason ? `: ${data.reason}` : ""} · ${describeStep(data)}`);
}

function describeOmitted({omitted, omitted_charts: titles}) {
  return omitted ? make("p", {class: "soft small"}, `${formatNumber(omitted)} more charts are not on this page, ` +
    `such as ${titles.slice(0, 3).join(", ")}. surestep plot RUN --of NAME draws one.`) : null;
}

function makeNumbers(data) {
  const {best} = data, known = data.time.filter(part => part.seconds !== null);
  const seconds = known.reduce((sum, part) => sum + part.seconds, 0);
  return make("div", {class: "numbers"},
    best ? makeNumber(formatNumber(best.value),
      `${best.mode === "max" ? "highest" : "lowest"} ${best.metric}, step ${formatNumber(best.step)}`, "main") : null,
    makeNumber(data.state, describeStep(data), `state-${data.state}`),
    makeNumber(formatDuration(seconds), "wall time"),
    data.final.flatMap(one => Object.entries(one.metrics).slice(0, 4).map(([name, value]) =>
      makeNumber(formatNumber(value), `${name} (${one.which}, step ${formatNumber(one.step)})`))),
    makeNumber(String(data.findings.length + data.incidents.length), "findings and incidents"));
}

/** Return a bar with the share of each part of the time, and its numbers. */
function makeTimes(parts) {
  const total = parts.reduce((sum, part) => sum + (part.seconds ?? 0), 0);
  if (!total) return make("p", {class: "soft"}, "Nothing was recorded.");
  const bar = make("div", {class: "bar", "aria-hidden": "true"}, parts.map((part, number) => {
    const part_of_bar = make("span", {class: `series-${number}`});
    part_of_bar.style.flexGrow = (part.seconds ?? 0) / total;
    return part_of_bar;
  }));
  return [bar, make("table", {class: "pairs"}, make("tbody", {}, parts.map((part, number) =>
    make("tr", {}, make("th", {scope: "row"}, make("i", {class: `swatch series-${number}`}), part.name),
      make("td", {}, part.seconds === null ? "not known: an older version did not record it"
        : `${formatDuration(part.seconds)} (${formatShare(part.seconds / total)})`)))))];
}

function makeState(state) {
  return make("div", {class: state.name === "unclear" ? "finding info" : state.is_healthy ? "finding" : "finding warning"},
    make("h3", {}, state.title), make("p", {}, state.message),
    state.is_healthy || !state.causes.length ? null : [
      make("p", {class: "soft small"}, "Usual causes, in the order to try:"),
      make("ol", {}, state.causes.map(cause => make("li", {}, cause.text,
        cause.command ? makeCommand(cause.command) : null)))]);
}

function makeFinding(finding) {
  const place = finding.file ? `${finding.file}${finding.line ? `:${finding.line}` : ""}` : null;
  const evidence = flatten(finding.evidence ?? {});
  return make("div", {class: `finding ${finding.severity}`},
    make("h3", {}, [finding.rule, finding.name].filter(Boolean).join(" "),
      make("span", {class: "soft small"}, ` ${finding.severity}`)),
    make("p", {}, finding.message), make("p", {}, finding.fix),
    place ? make("p", {class: "soft small"}, place) : null,
    evidence.length ? makeDetails("Evidence", () => makePairs(evidence)) : null,
    makeCommand(`surestep explain ${finding.rule}`));
}

/** Return nested values as pairs of a name with dots and a text. */
function flatten(value, name = "") {
  if (value !== null && typeof value === "object" && !Array.isArray(value))
    return Object.entries(value).flatMap(([key, inner]) => flatten(inner, name ? `${name}.${key}` : key));
  return [[name, typeof value === "string" ? value : JSON.stringify(value)]];
}
