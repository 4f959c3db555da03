"use strict";

const SECTIONS = [summarySection, accuracySection, trainingSection, partitionSection, pictureSection, featureSection, classSection, theorySection, experimentSection];

function build() {
  renewals.length = 0;
  const height = scrollY, sections = data.whole ? SECTIONS : [indexSection];
  keepingFocus(() => document.getElementById("main").replaceChildren(...sections.map((make) => make()).filter((made) => made)));
  scrollTo({ top: height, behavior: "instant" });
  contents();
  if (!data.whole) showTicked();
  renewing(() => {
    const seeds = new Set(data.runs.map((run) => run.seed)).size, many = (count, word) => `${count} ${word}${count > 1 ? "s" : ""}`;
    document.getElementById("about").textContent = `${many(data.runs.length, "run")}, ${many(data.groups.length, "method")}, ${many(seeds, "seed")}; vhl ${data.version}`;
  });
  drawAll();
}

/** What sections and controls there are to be. */
function shape({ whole, groups, runs, figures }) {
  const told = figures.map(({ name, panels }) => [name, panels.length]);
  return JSON.stringify(whole ? [groups.map(({ label }) => label), runs.map(({ name }) => name), told] : null);
}

/** New numbers into what is there; sections anew where there is more to show. */
function show(found) {
  const before = shape(data);
  window.report.data = data = { ...found, live: true };
  if (shape(data) !== before) return build();
  renewals.forEach((update) => update());
  drawAll();
}

/** While runs go on; the next time only after this one's answer. */
async function renew() {
  const about = document.getElementById("about");
  const answer = await fetch("data.json").catch(() => null);
  if (answer?.ok) show(await answer.json());
  about.classList.toggle("stale", answer === null);
  if (answer === null) about.textContent = "The run's page is no longer served; what is shown is the last that was.";
  setTimeout(renew, 3000);
}

document.getElementById("title").textContent = data.title;
beginTheme();
build();
if (data.live) setTimeout(renew, 3000);
window.report = { data, charts, hidden };
