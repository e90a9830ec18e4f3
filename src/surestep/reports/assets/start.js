// Show the page that the data are of.

const pages = {run: showRun, runs: showRuns};
const content = readData();
pages[content.kind](content);
