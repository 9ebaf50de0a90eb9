// Sorts tables, and shows the image under the pointer on a feature map. The page can be read without it.
"use strict";
const made = (name, attributes = {}) => Object.assign(document.createElement(name), attributes);

for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  const key = (row, column) => {
    const cell = row.cells[column], text = cell.dataset.value ?? cell.textContent.trim(), number = Number(text);
    return text !== "" && Number.isFinite(number) ? number : text;
  };
  heads.forEach((head, column) => {
    const button = made("button", { type: "button" });
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending" && (column > 0 || head.hasAttribute("aria-sort"));
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const order = (a, b) => {
        const [x, y] = [key(a, column), key(b, column)];
        if (typeof x === typeof y) return (x < y ? -1 : x > y ? 1 : 0) * (down ? -1 : 1);
        return typeof x === "number" ? -1 : 1; // cells without a number come last
      };
      body.append(...[...body.rows].sort(order));
    });
  });
}

for (const map of document.querySelectorAll(".map")) {
  const scope = map.closest(".linked") ?? map; // the maps that ring the same image
  const drawing = map.querySelector("svg"), paths = [...drawing.querySelectorAll(".dot")];
  const indices = map.dataset.indices.split(" "), { sheet, columns, count } = map.dataset;
  const dots = paths.flatMap((path) => {
    const tiles = path.dataset.tiles.split(" ").map(Number);
    const places = path.getAttribute("d").slice(1).split("M").map((at) => at.slice(0, -2).split(" ").map(Number));
    return places.map(([x, y], i) => ({ x, y, tile: tiles[i], name: path.dataset.name }));
  });
  const lens = made("div", { className: "lens", hidden: true }), words = made("div");
  const picture = made("span", { className: `tile ${sheet ?? ""}` });
  const said = made("div", { className: "unseen" });
  said.setAttribute("aria-live", "polite");
  lens.append(...(sheet ? [picture, words] : [words]));
  map.append(lens, said);
  const ring = document.createElementNS("http://www.w3.org/2000/svg", "circle");
  ring.setAttribute("class", "ring");
  ring.setAttribute("r", 8);
  let current = null;
  const side = drawing.viewBox.baseVal.width;

  const show = (dot, aloud) => {
    current = dot;
    lens.hidden = !dot;
    scope.dispatchEvent(new CustomEvent("ring", { detail: dot?.tile }));
    if (!dot) return;
    words.textContent = `${dot.name}, index ${indices[dot.tile]}`;
    if (sheet) {
      const lines = Math.ceil(count / columns);
      picture.style.backgroundSize = `${100 * columns}% ${100 * lines}%`;
      picture.style.backgroundPosition =
        `${(100 * (dot.tile % columns)) / Math.max(1, columns - 1)}%` +
        ` ${(100 * Math.floor(dot.tile / columns)) / Math.max(1, lines - 1)}%`;
    }
    const [box, outer] = [drawing.getBoundingClientRect(), map.getBoundingClientRect()], scale = box.width / side;
    const right = dot.x > side / 2 ? -lens.offsetWidth - 14 : 14;
    lens.style.left = `${Math.max(0, box.left - outer.left + dot.x * scale + right)}px`;
    lens.style.top = `${box.top - outer.top + Math.max(0, dot.y * scale - lens.offsetHeight / 2)}px`;
    if (aloud) said.textContent = words.textContent;
  };
  scope.addEventListener("ring", (event) => {
    const dot = dots.find((one) => one.tile === event.detail);
    if (!dot) return ring.remove();
    ring.setAttribute("cx", dot.x);
    ring.setAttribute("cy", dot.y);
    drawing.append(ring);
  });
  drawing.addEventListener("pointermove", (event) => {
    const box = drawing.getBoundingClientRect(), scale = side / box.width;
    const [x, y] = [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
    const away = (dot) => (dot.x - x) ** 2 + (dot.y - y) ** 2;
    const near = dots.reduce((best, dot) => (away(dot) < away(best) ? dot : best));
    show(away(near) < 20 ** 2 ? near : null, false);
  });
  drawing.addEventListener("pointerleave", () => show(null, false));
  drawing.setAttribute("tabindex", "0");
  const ways = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  drawing.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return show(null, false);
    const way = ways[event.key];
    if (!way) return;
    event.preventDefault();
    const from = current ?? { x: side / 2, y: side / 2 };
    const along = (dot) => (dot.x - from.x) * way[0] + (dot.y - from.y) * way[1];
    const off = (dot) => Math.abs((dot.x - from.x) * way[1]) + Math.abs((dot.y - from.y) * way[0]);
    const ahead = dots.filter((dot) => along(dot) > 0 && off(dot) <= along(dot));
    if (ahead.length) show(ahead.reduce((a, b) => (along(b) + off(b) < along(a) + off(a) ? b : a)), true);
  });
  drawing.addEventListener("blur", () => show(null, false));
}

for (const scope of document.querySelectorAll(".map, .linked")) {
  const drawings = [...scope.querySelectorAll(".dots")];
  for (const [i, item] of [...scope.querySelectorAll(":scope > .legend li")].entries()) {
    const button = made("button", { type: "button" });
    button.setAttribute("aria-pressed", "false");
    button.append(...item.childNodes);
    item.append(button);
    button.addEventListener("click", () => {
      const on = button.getAttribute("aria-pressed") === "false";
      scope.querySelectorAll(".legend button").forEach((other) => other.setAttribute("aria-pressed", "false"));
      button.setAttribute("aria-pressed", String(on));
      for (const drawing of drawings) {
        drawing.classList.toggle("lit", on);
        drawing.querySelectorAll(".dot").forEach((path, j) => path.classList.toggle("on", on && i === j));
      }
    });
  }
}
