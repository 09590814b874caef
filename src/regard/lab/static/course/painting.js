// Cells that are painted: press one and drag over others with mouse or finger; arrow keys move, space changes one.

// `read(i, j)` is the present state, `write(i, j, on)` sets it; cells carry data-i and data-j.
export function paint(grid, selector, read, write) {
  let brush = null;
  const under = event => document.elementFromPoint(event.clientX, event.clientY)?.closest(selector);
  const touch = cell => {
    if (!cell || !grid.contains(cell)) return;
    const i = Number(cell.dataset.i), j = Number(cell.dataset.j);
    if (Boolean(read(i, j)) !== brush) write(i, j, brush);
  };
  grid.addEventListener("pointerdown", event => {
    const cell = event.target.closest(selector);
    if (!cell || event.button) return;
    event.preventDefault(), cell.focus({ preventScroll: true });
    brush = !read(Number(cell.dataset.i), Number(cell.dataset.j));
    grid.setPointerCapture(event.pointerId), touch(cell);
  });
  grid.addEventListener("pointermove", event => { if (brush !== null) touch(under(event)); });
  for (const end of ["pointerup", "pointercancel"]) grid.addEventListener(end, () => { brush = null; });
  grid.addEventListener("keydown", event => {
    const cell = event.target.closest(selector);
    if (!cell || (event.key !== " " && event.key !== "Enter")) return;
    event.preventDefault(), event.stopPropagation();
    const i = Number(cell.dataset.i), j = Number(cell.dataset.j);
    write(i, j, !read(i, j));
  });
}

// Arrow keys move the focus between the cells of a grid of `columns` columns.
export function gridKeys(grid, selector, columns) {
  grid.addEventListener("keydown", event => {
    const cells = [...grid.querySelectorAll(selector)], at = cells.indexOf(event.target.closest(selector));
    const to = at + ({ ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key] ?? NaN);
    if (at < 0 || !cells[to]) return;
    event.preventDefault(), event.stopPropagation();
    cells[at].tabIndex = -1, cells[to].tabIndex = 0, cells[to].focus();
  });
}
