"use strict";
(() => {
  // The page never builds HTML from strings; the one exception is the chart library emptying its container with "".
  if (window.trustedTypes && window.trustedTypes.createPolicy) {
    window.trustedTypes.createPolicy("default", {
      createHTML: (text) => {
        if (text === "") return text;
        throw new TypeError("This page does not build HTML from text.");
      },
    });
  }

  const root = document.documentElement;
  const darkScreen = window.matchMedia("screen and (prefers-color-scheme: dark)");
  const views = [];

  // Data sets travel as columns: numbers as one string, repeated strings as indices into a list of levels.
  function unpack(packed) {
    const read = Object.entries(packed.columns).map(([name, column]) => {
      if (Array.isArray(column)) return [name, (row) => column[row]];
      if (column.numbers !== undefined) {
        const numbers = column.numbers.split(" ").map((text) => (text === "x" ? null : Number(text)));
        return [name, (row) => numbers[row]];
      }
      return [name, (row) => (column.index[row] < 0 ? null : column.levels[column.index[row]])];
    });
    const records = [];
    for (let row = 0; row < packed.length; row += 1) {
      records.push(Object.fromEntries(read.map(([name, get]) => [name, get(row)])));
    }
    return records;
  }

  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  document.body.append(tip);

  // Text nodes only: names of models, tokens and edits are never read as HTML.
  function showTip(handler, event, item, value) {
    if (value === null || value === undefined || value === "") {
      tip.hidden = true;
      return;
    }
    const list = document.createElement("dl");
    const entries = typeof value === "object" ? Object.entries(value) : [["", String(value)]];
    for (const [name, text] of entries) {
      if (text === undefined || text === null || text === "null" || text === "undefined" || text === "NaN") continue;
      const term = document.createElement("dt");
      const detail = document.createElement("dd");
      term.textContent = name;
      detail.textContent = String(text);
      list.append(term, detail);
    }
    tip.replaceChildren(list);
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = event.clientX + 14 + box.width > root.clientWidth ? event.clientX - box.width - 14 : event.clientX + 14;
    const top = event.clientY + 14 + box.height > root.clientHeight ? event.clientY - box.height - 14 : event.clientY + 14;
    tip.style.left = `${Math.max(4, left)}px`;
    tip.style.top = `${Math.max(4, top)}px`;
  }

  function hasSignal(view, name) {
    return Object.prototype.hasOwnProperty.call(view.getState({ signals: () => true, data: () => false }).signals, name);
  }

  // Faceted charts cannot fill their container by themselves: what is not plot is measured, the rest given to the plot.
  async function fit(entry) {
    const space = entry.plot.clientWidth;
    if (!entry.faceted || !space) return;
    // Axis labels may come or go with the width, so a second look can be needed.
    for (let look = 0; look < 3; look += 1) {
      const now = entry.view.signal("child_width");
      const svg = entry.plot.querySelector("svg");
      if (!svg) return;
      const wanted = Math.max(160, Math.floor(space - (svg.width.baseVal.value - now) - 1));
      if (Math.abs(wanted - now) <= 1) return;
      // The first run moves the marks and asks for a new size, the second gives the picture that size.
      await entry.view.signal("child_width", wanted).resize().runAsync();
      await entry.view.runAsync();
    }
  }

  function link(entry) {
    for (const [name, options] of Object.entries(entry.menus)) {
      entry.view.addSignalListener(name, (_, value) => {
        if (!options.includes(value)) return;
        for (const other of views) {
          const offered = other.menus[name];
          if (other !== entry && offered && offered.includes(value) && other.view.signal(name) !== value) {
            other.view.signal(name, value).runAsync();
          }
        }
      });
    }
  }

  function setDark(dark) {
    for (const entry of views) if (entry.dark) entry.view.signal("dark", dark).run();
  }

  async function draw(plot) {
    const figure = plot.closest("figure");
    const spec = JSON.parse(document.getElementById(plot.dataset.spec).textContent);
    for (const name of Object.keys(spec.datasets || {})) spec.datasets[name] = unpack(spec.datasets[name]);
    spec.description = `${figure.querySelector("h3").textContent}. ${figure.querySelector("figcaption").textContent}`;
    spec.autosize = spec.facet ? undefined : { type: "fit-x", contains: "padding" };
    if (!spec.autosize) delete spec.autosize;
    const config = JSON.parse(document.getElementById("chart-config").textContent);
    if (plot.clientWidth < 560) config.legend.columns = 2;
    const result = await window.vegaEmbed(plot, spec, {
      mode: "vega-lite",
      renderer: "svg",
      ast: true,
      actions: false,
      defaultStyle: false,
      tooltip: showTip,
      bind: figure.querySelector(".menus"),
      config,
    });
    const menus = {};
    for (const param of spec.params || []) if (param.bind && param.bind.options) menus[param.name] = param.bind.options;
    const names = (spec.params || []).map((param) => param.name);
    const entry = { view: result.view, figure, plot, menus, faceted: Boolean(spec.facet), dark: names.includes("dark") };
    views.push(entry);
    if (entry.dark && darkScreen.matches) await entry.view.signal("dark", true).runAsync();
    await fit(entry);
    link(entry);
  }

  async function drawAll() {
    let failed = 0;
    for (const plot of document.querySelectorAll(".plot")) {
      try {
        await draw(plot);
      } catch (error) {
        failed += 1;
        const note = document.createElement("p");
        note.className = "waiting";
        note.textContent = `This chart could not be drawn: ${error.message}`;
        plot.replaceChildren(note);
        console.error(`chart ${plot.dataset.spec}: ${error.message}`);
      }
    }
    root.dataset.charts = failed ? "failed" : "drawn";
  }

  function say(text) {
    const said = document.getElementById("said");
    said.textContent = text;
    said.classList.remove("hidden");
    window.clearTimeout(say.timer);
    say.timer = window.setTimeout(() => said.classList.add("hidden"), 1800);
  }

  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // Older browsers, and pages opened as files, may refuse the clipboard interface.
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    say("Copied");
  }

  // Tab-separated, at full precision; a column with standard errors becomes two.
  function tableText(table) {
    const rows = [...table.tBodies[0].rows].map((row) => [...row.cells]);
    const heads = [...table.tHead.rows[table.tHead.rows.length - 1].cells].map((cell) => cell.textContent.trim());
    const withError = heads.map((_, column) => rows.some((row) => row[column].dataset.stderr !== undefined));
    const clean = (text) => text.trim().replace(/[\t\r\n]+/g, " ");
    const lines = [heads.flatMap((head, column) => (withError[column] ? [head, `${head} standard error`] : [head]))];
    for (const row of rows) {
      lines.push(
        row.flatMap((cell, column) => {
          const value = cell.dataset.value === undefined ? clean(cell.textContent) : cell.dataset.value;
          return withError[column] ? [value, cell.dataset.stderr || ""] : [value];
        }),
      );
    }
    return lines.map((line) => line.join("\t")).join("\n");
  }

  function download(blob, name) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    window.setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  // Pictures are always light: on white paper, whatever the screen.
  async function save(button) {
    const figure = button.closest("figure");
    const entry = views.find((candidate) => candidate.figure === figure);
    if (!entry) return;
    const before = entry.view.background();
    if (entry.dark) entry.view.signal("dark", false);
    entry.view.background("white").run();
    try {
      if (button.dataset.save === "svg") {
        download(new Blob([await entry.view.toSVG()], { type: "image/svg+xml" }), `${figure.id}.svg`);
      } else {
        const canvas = await entry.view.toCanvas(2);
        canvas.toBlob((blob) => download(blob, `${figure.id}.png`), "image/png");
      }
    } finally {
      if (entry.dark) entry.view.signal("dark", darkScreen.matches);
      entry.view.background(before).run();
    }
  }

  document.addEventListener("click", (event) => {
    const button = event.target instanceof Element ? event.target.closest("button") : null;
    if (!button) return;
    if (button.dataset.save) save(button);
    else if (button.dataset.copy === "table") copy(tableText(button.closest(".table").querySelector("table")));
    else if (button.dataset.copy === "code") copy(button.closest(".code").querySelector("code").textContent);
  });

  let waiting = 0;
  window.addEventListener("resize", () => {
    window.clearTimeout(waiting);
    waiting = window.setTimeout(() => views.forEach(fit), 120);
  });
  darkScreen.addEventListener("change", () => setDark(darkScreen.matches));
  window.addEventListener("beforeprint", () => setDark(false));
  window.addEventListener("afterprint", () => setDark(darkScreen.matches));
  drawAll();
})();
