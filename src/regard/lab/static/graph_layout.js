// Where the nodes of a graph and the numbers on its edges stand, so that none covers another.

const APART = 6, PASSES = 60;
// Moves nodes that overlap apart, in place. `position`: node → [x, y]; `radius(n)`: the room of a node; `size`: [width, height] of the picture.
export function spreadNodes(position, radius, [wide, tall], margin = 16) {
  const nodes = [...position.keys()];
  for (let pass = 0; pass < PASSES; pass++) {
    let moved = false;
    for (let a = 0; a < nodes.length; a++) for (let b = a + 1; b < nodes.length; b++) {
      const [first, second] = [position.get(nodes[a]), position.get(nodes[b])], least = radius(nodes[a]) + radius(nodes[b]) + APART;
      const x = second[0] - first[0], y = second[1] - first[1], far = Math.hypot(x, y);
      if (far >= least) continue;
      const angle = far > 0.1 ? Math.atan2(y, x) : a + b, step = (least - far) / 2 + 0.1;  // nodes at the same place part in some direction
      move(first, -step * Math.cos(angle), -step * Math.sin(angle)), move(second, step * Math.cos(angle), step * Math.sin(angle)), moved = true;
    }
    if (!moved) return;
  }
  function move(place, x, y) { place[0] = Math.max(margin, Math.min(wide - margin, place[0] + x)), place[1] = Math.max(margin, Math.min(tall - margin, place[1] + y)); }
}

const SHARES = [0.6, 0.5, 0.7, 0.42, 0.78, 0.34], ROOM = 11, LEAST = 3;
// A function that places the numbers of edges one after another, where a number covers neither a node nor an earlier number; null where there is no such place.
// `discs`: [x, y, radius] of the nodes.
export function labelPlacer(discs) {
  const taken = [];
  return (from, to) => {
    let best = null;
    for (const share of SHARES) {
      const place = [from[0] * share + to[0] * (1 - share), from[1] * share + to[1] * (1 - share)];
      const room = Math.min(...discs.map(([x, y, radius]) => Math.hypot(x - place[0], y - place[1]) - radius), ...taken.map(([x, y]) => Math.max(Math.abs(x - place[0]) - ROOM, Math.abs(y - place[1]) - 2)));
      if (!best || room > best.room) best = { place, room };
      if (room >= ROOM) break;
    }
    if (best.room < LEAST) return null;
    taken.push(best.place);
    return best.place;
  };
}
