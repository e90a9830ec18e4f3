// A page that asks its server for what is new, and shows whether it gets it.

const ASK_MS = 1000;
const ASK_HIDDEN_MS = 20_000;  // of a page that no one sees
const ANSWER_MS = 15_000;

/** Keep a page up to date; live: what the page had when it was loaded. */
function follow({parts, view}, live) {
  const state = make("span", {role: "status"}), age = make("span");
  const line = make("p", {class: "live soft small"}, state, age);
  const problem = make("div", {class: "finding error", hidden: ""});
  document.querySelector("header").append(line, problem);
  let answered = performance.now(), lostAt = null, timer = null;

  function show() {
    line.classList.toggle("lost", lostAt !== null);
    setText(state, lostAt ? `Connection lost at ${lostAt.toLocaleTimeString()}. The page shows what it has, and tries again.`
      : `Live: ${live.state ?? "not known"}`);
    const seconds = live.age_s === null ? null : live.age_s + (performance.now() - answered) / 1000;
    setText(age, seconds === null ? "" : `updated ${formatDuration(Math.floor(seconds))} ago`);
    problem.hidden = !live.problem;
    setText(problem, live.problem ?? "");
  }

  /** Show what is new. */
  function take({parts: changes, increments, ...status}) {
    live = status;
    if (live.step !== null && live.step !== parts.data.step) changes.step ??= live.step;
    if (changes.runs) view.take(changes);
    parts.update(changes);
    if (changes.charts || changes.axes || changes.marks) view.renew(changes);
    if (increments.length) view.grow(increments);
  }

  async function ask() {
    clearTimeout(timer);
    timer = null;
    let news = null;
    try {
      const signal = AbortSignal.timeout(ANSWER_MS);
      const answer = await fetch(`news?after=${live.version}`, {cache: "no-store", signal});
      if (answer.ok) news = await answer.json();
    } catch {  // the server has ended, or cannot be reached
    }
    timer = setTimeout(ask, document.hidden ? ASK_HIDDEN_MS : ASK_MS);
    if (news?.is_other) location.reload();
    else if (news) {
      [answered, lostAt] = [performance.now(), null];
      take(news);
    } else lostAt ??= new Date();
    show();
  }

  take(live);
  show();
  setInterval(show, ASK_MS);
  document.addEventListener("visibilitychange", () => { if (timer !== null) ask(); });
  timer = setTimeout(ask, ASK_MS);
}

/** Set a text if it differs, so that a selection in it stays. */
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
