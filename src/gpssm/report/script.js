"use strict";
// The page's charts: lines and bands over time, with values under the pointer, zoom, and switches for methods and levels.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const MARGIN = { top: 26, right: 12, bottom: 40, left: 58 };
  const KNOWN = new Set(["model", "arx", "lgssm", "last", "mean", "actual", "history", "input", "untrusted"]);

  const make = (name, attributes, parent) => {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (parent) parent.append(element);
    return element;
  };
  const html = (name, text, parent, className = "") => {
    const element = document.createElement(name);
    element.textContent = text;
    element.className = className;
    parent.append(element);
    return element;
  };
  const short = (value, digits) => (value == null ? "–" : String(Number(value.toPrecision(digits))));
  const colour = (key) => `method-${KNOWN.has(key) ? key : "other"}`;

  // Round numbers between two limits, about `count` of them; whole ones where there is nothing in between.
  function ticks(low, high, count, whole = false) {
    const raw = Math.max((high - low) / Math.max(count, 1), whole ? 1 : 0);
    const power = 10 ** Math.floor(Math.log10(raw));
    const sizes = [1, 2, 2.5, 5, 10].map((digit) => digit * power).filter((size) => !whole || size % 1 === 0);
    return multiples(low, high, sizes.find((size) => size >= raw * 0.999));
  }

  function multiples(low, high, step) {
    const found = [];
    for (let index = Math.ceil(low / step - 1e-9); index * step <= high + step * 1e-9; index++) {
      found.push(Number((index * step).toPrecision(12)));
    }
    return found;
  }

  // A path through the points that exist, broken where one does not: as a line, as dots, or held until the next one.
  function through(xs, ys, kind) {
    let path = "";
    let broken = true;
    ys.forEach((y, index) => {
      if (y == null) { broken = true; return; }
      const [x, height] = [xs[index].toFixed(1), y.toFixed(1)];
      if (kind === "dots") path += `M${x} ${height}h.01`;
      else if (broken) path += `M${x} ${height}`;
      else path += kind === "steps" ? `H${x}V${height}` : `L${x} ${height}`;
      broken = false;
    });
    return path;
  }

  class Panel {
    constructor(group, spec, element, index) {
      Object.assign(this, { group, spec, element, index });
      this.tip = html("div", "", element, "tip");
      this.tip.hidden = true;
      element.addEventListener("pointermove", (event) => this.move(event));
      element.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") group.point(null); });
      element.addEventListener("pointerdown", (event) => this.press(event));
      element.addEventListener("dblclick", () => group.zoom(null));
      element.addEventListener("keydown", (event) => this.key(event));
    }

    shown(key) { return !this.group.hidden.has(key); }
    lines() { return this.spec.lines.filter((line) => this.shown(line.key)); }
    bands() { return this.spec.bands.filter((band) => this.shown(band.key) && !this.group.faded.has(band.level)); }

    range() {
      const [from, to] = this.group.domain;
      let low = Infinity;
      let high = -Infinity;
      const take = (one, values) => values.forEach((value, index) => {
        const x = one.x0 + index * one.dx;
        if (value == null || x < from || x > to) return;
        low = Math.min(low, value);
        high = Math.max(high, value);
      });
      this.lines().forEach((line) => take(line, line.values));
      this.bands().forEach((band) => { take(band, band.low); take(band, band.high); });
      if (low > high) return [0, 1];
      if (this.spec.zero) low = Math.min(low, 0);
      const margin = 0.06 * (high - low || Math.abs(high) || 1);
      return [this.spec.zero ? low : low - margin, high + margin];
    }

    draw() {
      const width = Math.max(this.element.clientWidth, 240);
      const height = this.spec.low ? 150 : width < 520 ? 240 : 320;
      const [x0, x1] = this.group.domain;
      const [y0, y1] = this.range();
      const inner = { width: width - MARGIN.left - MARGIN.right, height: height - MARGIN.top - MARGIN.bottom };
      this.x = (x) => MARGIN.left + ((x - x0) / (x1 - x0)) * inner.width;
      this.y = (y) => (y == null ? null : MARGIN.top + (1 - (y - y0) / (y1 - y0)) * inner.height);
      this.size = { width, height, inner };
      // Four digits, and as many more as it takes to tell values apart that differ little.
      const alike = Math.max(Math.abs(y0), Math.abs(y1)) / (y1 - y0);
      this.digits = Math.min(4 + Math.max(Math.ceil(Math.log10(alike)) - 1, 0), 15);
      if (this.svg) this.svg.remove();
      this.svg = make("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true", focusable: "false" });
      this.element.prepend(this.svg);
      this.axes(x0, x1, y0, y1);
      const clip = `clip-${this.group.name}-${this.index}`;
      make("rect", { x: MARGIN.left, y: MARGIN.top, ...inner }, make("clipPath", { id: clip }, this.svg));
      this.inside = make("g", { "clip-path": `url(#${clip})` }, this.svg);
      this.marks();
      this.brush = make("rect", { class: "brush", y: MARGIN.top, height: inner.height, width: 0 }, this.svg);
      this.cursor = make("g", {}, this.svg);
    }

    axes(x0, x1, y0, y1) {
      const { width, height, inner } = this.size;
      const bottom = height - MARGIN.bottom;
      ticks(y0, y1, 5).forEach((value) => {
        const y = this.y(value);
        make("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y, y2: y }, this.svg);
        make("text", { x: MARGIN.left - 8, y: y + 4, "text-anchor": "end" }, this.svg).textContent = this.figure(value);
      });
      const room = this.group.spec.dates ? 90 : 70;
      const whole = this.spec.lines.every((line) => line.x0 % 1 === 0 && line.dx === 1);
      const number = Math.max(inner.width / room, 2);
      const { steps = [], midnight } = this.group.spec;
      const step = steps.find((rows) => rows >= (x1 - x0) / number);
      const rounded = step ? multiples(x0 - midnight, x1 - midnight, step).map((x) => x + midnight) : [];
      const places = rounded.length > 1 ? rounded : ticks(x0, x1, number, whole);
      const texts = places.map((value) => this.when(value));
      // A day that all labels share is said once, below them.
      const day = this.group.spec.dates && texts.every((text) => text.length > 10 && text.slice(0, 10) === texts[0].slice(0, 10));
      let free = 0; // from here on no label has been written
      places.forEach((value, index) => {
        const text = make("text", { y: bottom + 17, "text-anchor": "middle" }, this.svg);
        text.textContent = day ? texts[index].slice(11) : texts[index];
        const half = text.getComputedTextLength() / 2 + 1; // near an edge it moves inwards rather than be cut
        const middle = Math.min(Math.max(this.x(value), half), width - half);
        text.setAttribute("x", middle);
        if (middle - half < free) text.remove();
        else free = middle + half + 10;
      });
      const label = { x: MARGIN.left + inner.width / 2, y: height - 6, "text-anchor": "middle" };
      const name = this.group.spec.x;
      make("text", label, this.svg).textContent = day && texts.length ? `${name} (${texts[0].slice(0, 10)})` : name;
      const title = make("text", { class: "title", x: 4, y: 15 }, this.svg);
      title.textContent = this.spec.title;
      // A long name is drawn narrower rather than cut.
      if (title.getComputedTextLength() > width - 8) title.setAttribute("textLength", width - 8);
      title.setAttribute("lengthAdjust", "spacingAndGlyphs");
    }

    marks() {
      const places = (one, values) => values.map((_, index) => this.x(one.x0 + index * one.dx));
      const levels = this.bands().map((band) => band.level);
      this.bands().sort((a, b) => b.level - a.level).forEach((band) => {
        const xs = places(band, band.low);
        const there = band.low.map((low, index) => low != null && band.high[index] != null);
        const chosen = xs.map((_, index) => index).filter((index) => there[index]);
        const point = (index, values) => `${xs[index].toFixed(1)} ${this.y(values[index]).toFixed(1)}`;
        const up = chosen.map((index) => point(index, band.high));
        const down = chosen.map((index) => point(index, band.low)).reverse();
        const narrow = band.level < Math.max(...levels) ? " narrow" : "";
        if (chosen.length) make("path", { class: `band ${colour(band.key)}${narrow}`, d: `M${up.join("L")}L${down.join("L")}Z` }, this.inside);
      });
      (this.spec.untrusted ?? []).forEach(([from, to]) => {
        make("rect", { class: "untrusted", x: this.x(from), y: MARGIN.top, width: this.x(to) - this.x(from), height: this.size.inner.height }, this.inside);
      });
      if (this.spec.split != null) {
        const x = this.x(this.spec.split);
        make("line", { class: "split", x1: x, x2: x, y1: 0, y2: this.size.height - MARGIN.bottom }, this.inside);
      }
      this.lines().forEach((line) => {
        const path = through(places(line, line.values), line.values.map((value) => this.y(value)), line.kind);
        make("path", { class: `${line.kind === "dots" ? "dots" : "line"} ${colour(line.key)}`, d: path }, this.inside);
      });
    }

    // The values at x: one row per line that has a value there, with its intervals.
    at(x) {
      return this.lines().flatMap((line) => {
        const index = Math.round((x - line.x0) / line.dx);
        const value = line.values[index];
        if (value == null) return [];
        const bands = this.bands().filter((band) => band.key === line.key);
        const spans = bands.map((band) => `${band.level} %: ${this.figure(band.low[index])} to ${this.figure(band.high[index])}`);
        return [{ line, value, spans }];
      });
    }

    figure(value) { return short(value, this.digits); }

    // The place on the axis in words: the date of the row, where rows have dates.
    when(x) {
      const { dates, first } = this.group.spec;
      return dates ? dates[Math.round(x) - first] ?? "" : short(x, 9);
    }

    show(x) {
      this.cursor.replaceChildren();
      const rows = x == null ? [] : this.at(x);
      this.tip.hidden = !rows.length;
      if (!rows.length) return;
      const place = this.x(x);
      make("line", { class: "cursor", x1: place, x2: place, y1: MARGIN.top, y2: this.size.height - MARGIN.bottom }, this.cursor);
      rows.forEach(({ line, value }) => {
        make("circle", { class: `point ${colour(line.key)}`, cx: place, cy: this.y(value), r: 4 }, this.cursor);
      });
      this.tip.replaceChildren();
      html("b", `${this.group.spec.x} ${this.when(x)}`, this.tip);
      rows.forEach(({ line, value, spans }) => {
        const row = html("div", "", this.tip, colour(line.key));
        html("span", "", row, "swatch");
        const text = html("span", `${line.label}: ${this.figure(value)}`, row);
        spans.forEach((span) => html("small", span, text));
      });
      const share = this.element.clientWidth / this.size.width;
      const right = place > this.size.width / 2;
      this.tip.style.left = right ? "auto" : `${place * share + 12}px`;
      this.tip.style.right = right ? `${this.element.clientWidth - place * share + 12}px` : "auto";
    }

    told(x) {
      const rows = this.at(x).map(({ line, value, spans }) => [`${line.label} ${this.figure(value)}`, ...spans].join(", "));
      return `${this.group.spec.x} ${this.when(x)}. ${rows.join(". ")}`;
    }

    place(event) {
      const box = this.svg.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * this.size.width;
      const share = Math.min(Math.max((x - MARGIN.left) / this.size.inner.width, 0), 1);
      const [from, to] = this.group.domain;
      return from + share * (to - from);
    }

    move(event) {
      const x = this.place(event);
      if (this.from == null) { this.group.point(this.group.nearest(x)); return; }
      const ends = [this.x(this.from), this.x(x)].sort((a, b) => a - b);
      this.brush.setAttribute("x", ends[0]);
      this.brush.setAttribute("width", ends[1] - ends[0]);
    }

    press(event) {
      if (event.pointerType !== "mouse") this.move(event);
      if (event.pointerType !== "mouse" || event.button !== 0) return;
      this.from = this.place(event);
      window.addEventListener("pointerup", (end) => {
        const to = this.place(end);
        const from = this.from;
        this.from = null;
        this.brush.setAttribute("width", 0);
        if (Math.abs(this.x(to) - this.x(from)) > 8) this.group.zoom([Math.min(from, to), Math.max(from, to)]);
      }, { once: true });
    }

    key(event) {
      const acts = { "+": "in", "=": "in", "-": "out", Escape: "reset" };
      const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key in acts) this.group.act(acts[event.key]);
      else if (event.key in moves) this.group.step(moves[event.key], this);
      else return;
      event.preventDefault();
    }
  }

  class Group {
    constructor(spec, element) {
      Object.assign(this, { spec, element, name: spec.id, hidden: new Set(), faded: new Set(), cursor: null });
      const all = spec.panels.flatMap((panel) => [...panel.lines, ...panel.bands.map((band) => ({ ...band, values: band.low }))]);
      this.dx = Math.min(...all.map((one) => one.dx));
      this.first = Math.min(...all.map((one) => one.x0));
      const last = Math.max(...all.map((one) => one.x0 + (one.values.length - 1) * one.dx));
      this.full = [this.first, Math.max(last, this.first + this.dx)];
      this.domain = this.full;
      this.status = element.querySelector("[role=status]");
      this.panels = [...element.querySelectorAll(".chart")].map((node, index) => new Panel(this, spec.panels[index], node, index));
      element.querySelectorAll("[data-act]").forEach((button) => button.addEventListener("click", () => this.act(button.dataset.act)));
      element.querySelectorAll("[data-method]").forEach((box) => this.follow(box, this.hidden, box.dataset.method));
      element.querySelectorAll("[data-level]").forEach((box) => this.follow(box, this.faded, Number(box.dataset.level)));
      new ResizeObserver(() => this.draw()).observe(element);
      this.draw();
    }

    follow(box, without, key) {
      const update = () => { if (box.checked) without.delete(key); else without.add(key); };
      update();
      box.addEventListener("change", () => { update(); this.draw(); });
    }

    draw() { this.panels.forEach((panel) => panel.draw()); this.point(this.cursor); }
    nearest(x) { return this.first + Math.round((x - this.first) / this.dx) * this.dx; }
    point(x) { this.cursor = x; this.panels.forEach((panel) => panel.show(x)); }

    step(by, panel) {
      const [from, to] = this.domain;
      const start = this.cursor ?? (from + to) / 2;
      const x = this.nearest(Math.min(Math.max(start + by * this.dx, from), to));
      this.point(x);
      this.status.textContent = panel.told(x);
    }

    zoom(domain) {
      const [from, to] = domain ?? this.full;
      const width = Math.min(Math.max(to - from, 4 * this.dx), this.full[1] - this.full[0]);
      const left = Math.min(Math.max((from + to - width) / 2, this.full[0]), this.full[1] - width);
      this.domain = [left, left + width];
      this.draw();
    }

    act(name) {
      const [from, to] = this.domain;
      const width = to - from;
      const moves = {
        in: [from + width / 4, to - width / 4],
        out: [from - width / 2, to + width / 2],
        left: [from - width / 4, to - width / 4],
        right: [from + width / 4, to + width / 4],
        reset: null,
      };
      this.zoom(moves[name]);
    }
  }

  function startTheme() {
    const root = document.documentElement;
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const button = document.getElementById("theme");
    const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
    const tell = () => button.setAttribute("aria-pressed", String(isDark()));
    button.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; tell(); });
    dark.addEventListener("change", tell);
    tell();
  }

  function startPicker() {
    const picker = document.getElementById("experiment");
    if (!picker) return;
    picker.addEventListener("change", () => {
      document.querySelectorAll("[data-experiment]").forEach((one) => { one.hidden = one.dataset.experiment !== picker.value; });
    });
  }

  document.documentElement.classList.add("js");
  startPicker();
  startTheme();
  const specs = JSON.parse(document.getElementById("charts").textContent);
  document.querySelectorAll("[data-group]").forEach((element) => new Group(specs[element.dataset.group], element));
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => { one.open = true; }));
})();
