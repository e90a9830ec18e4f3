// Show the page that the data are of.

const pages = {run: showRun, runs: showRuns};
const content = readData();
const page = pages[content.kind](content);
if (content.live) follow(page, content.live);
