"use strict";
(() => {
  const tip = document.getElementById("tip");
  const all = (selector, from) => [...(from || document).querySelectorAll(selector)];

  const bytes = (n) => {
    const unit = [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]].find(([f]) => n >= f);
    return unit ? (n / unit[0]).toFixed(2) + " " + unit[1] : n + " B";
  };

  const show = (said, event) => {
    tip.textContent = said;
    tip.hidden = false;
    const right = event.clientX + 16 + tip.offsetWidth > innerWidth;
    const low = event.clientY + 16 + tip.offsetHeight > innerHeight;
    tip.style.left = Math.max(4, right ? event.clientX - tip.offsetWidth - 12 : event.clientX + 16) + "px";
    tip.style.top = Math.max(4, low ? event.clientY - tip.offsetHeight - 12 : event.clientY + 16) + "px";
  };
  const hide = () => { tip.hidden = true; };

  // Titles become tooltips without delay; buffers of one storage light up together.
  const said = new Map();
  for (const title of all("svg title")) {
    said.set(title.parentNode, title.textContent);
    title.parentNode.setAttribute("aria-label", title.textContent);
    title.remove();
  }
  let lit = [];
  const unlight = () => { lit.forEach((e) => e.classList.remove("lit")); lit = []; };
  for (const picture of all("svg")) {
    picture.addEventListener("pointermove", (event) => {
      if (picture.classList.contains("live")) return;
      unlight();
      const storage = event.target.getAttribute && event.target.getAttribute("data-s");
      if (storage !== null) lit = all(`[data-s="${storage}"]`, picture);
      lit.forEach((e) => e.classList.add("lit"));
      const text = said.get(event.target);
      if (text) show(text, event); else hide();
    });
    picture.addEventListener("pointerleave", () => { unlight(); hide(); });
  }

  // Memory over time: a line under the pointer reads out both layouts.
  for (const chart of all("svg.live")) {
    const series = JSON.parse(chart.dataset.series);
    const frame = JSON.parse(chart.dataset.frame);
    const cross = chart.querySelector(".cross");
    chart.addEventListener("pointermove", (event) => {
      const x = event.clientX - chart.getBoundingClientRect().left - frame.left;
      const step = Math.floor(x / frame.width * frame.steps);
      if (step < 0 || step >= frame.steps) { cross.style.visibility = "hidden"; hide(); return; }
      const at = frame.left + (step + 0.5) / frame.steps * frame.width;
      cross.setAttribute("x1", at);
      cross.setAttribute("x2", at);
      cross.style.visibility = "visible";
      const lines = Object.entries(series).map(([kind, s]) => step < s.live.length
        ? `${kind} ${bytes(s.live[step])}${s.runs[step] ? " while " + s.runs[step] : ""}`
        : `${kind} done`);
      show([`step ${step}`, ...lines].join("\n"), event);
    });
    chart.addEventListener("pointerleave", () => { cross.style.visibility = "hidden"; hide(); });
  }

  // Round numbers of steps below an arena that is stretched.
  const ticks = (picture, width) => {
    const old = all("text.step", picture);
    const steps = +picture.dataset.steps;
    let every = 1;
    for (let i = 0; every / steps * width < 70; i++) every *= i % 3 === 1 ? 2.5 : 2;
    for (let step = 0; step < steps; step += every) {
      const label = old[0].cloneNode();
      label.textContent = step;
      label.setAttribute("x", Math.max((step + 0.5) / steps * width, 4));
      old[0].before(label);
    }
    old.forEach((e) => e.remove());
  };

  // Zoom: stretch what lies along the steps, cut the names anew.
  const stretched = { rect: ["x", "width"], text: ["x"], line: ["x1", "x2"] };
  for (const figure of all(".arenas")) {
    const pictures = all("svg.arena", figure);
    const found = [];
    for (const picture of pictures) {
      for (const [tag, names] of Object.entries(stretched)) {
        for (const e of all(tag, picture)) {
          for (const name of names) found.push([e, name, +e.getAttribute(name)]);
        }
      }
    }
    const names = pictures.flatMap((p) => all("text.name", p));
    const widths = pictures.map((p) => +p.getAttribute("width"));
    const zoom = figure.querySelector(".zoom");
    const most = 64;
    let factor = 1;
    zoom.hidden = false;
    zoom.addEventListener("click", (event) => {
      const by = +event.target.dataset.by;
      if (!by) return;
      factor = Math.min(most, Math.max(1, factor * by));
      zoom.querySelector("output").textContent = factor;
      for (const [e, name, value] of found) e.setAttribute(name, value * factor);
      for (const e of names) {
        const room = Math.floor((e.dataset.room * factor - 8) / 6.8);
        const full = e.dataset.full;
        e.textContent = full.length <= room ? full : room > 3 ? full.slice(0, room - 1) + "…" : "";
      }
      pictures.forEach((p, i) => {
        ticks(p, widths[i] * factor);
        p.setAttribute("width", widths[i] * factor);
        p.setAttribute("viewBox", `0 0 ${widths[i] * factor} ${p.getAttribute("height")}`);
      });
    });
    // Arenas of one region scroll together.
    const panes = all(".scroll", figure).filter((p) => p.querySelector("svg.arena"));
    for (const pane of panes) {
      pane.addEventListener("scroll", () => panes.forEach((p) => {
        if (p !== pane && p.scrollLeft !== pane.scrollLeft) p.scrollLeft = pane.scrollLeft;
      }));
    }
  }

  // Decisions: the filter looks at all that a decision says.
  const filter = document.querySelector(".filter");
  filter.hidden = false;
  const decisions = all("details.decision").map((e) => [e, e.textContent.toLowerCase()]);
  filter.querySelector("input").addEventListener("input", (event) => {
    const asked = event.target.value.toLowerCase();
    for (const [e, text] of decisions) e.hidden = !text.includes(asked);
    for (const layer of all(".layer")) layer.hidden = !layer.querySelector("details.decision:not([hidden])");
  });
})();
