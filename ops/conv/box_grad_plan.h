// The weight's gradient over boxes of pixels (box_plan.h): sizes, tiles and places, for kernels, their host
// side and tests.
//
//   gw[ci, co, tap] = sum over pixels i of x[i, ci] * plane[i + shift(tap), co]
// for the taps that read a plane of y. A tile has pixels of x and the box of y that they meet; pixels are
// multiplied in steps of 16 that follow each other in x, and in y at a constant distance: rows of 16 columns,
// one row of more, or rows of the whole width, of one image or several side by side, whose boxes have the
// same pitch. Where a step has no pixel, x is zero: y may be anything that is finite there. In small images
// many steps have such places, so taps of a row may have boxes of their own, as wide as x is: four images of
// 4x4 pixels then take 4 steps, instead of 5 with 2x2 taps.
// Few channels may be those of folded columns (fold.h).
//
// A warpgroup has a block of 64 channels of x and a unit: `atoms` blocks of 64 products each, of neighbouring
// taps of a row, or where no plane has neighbours, of blocks of channels of y. Units share a row's taps
// evenly: some have one less. A thread block (a work) has as many of both as there are warpgroups for, so
// that they share boxes.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include <tapedeck/ops/conv/box_plan.h>
#include <tapedeck/ops/conv/fold.h>
#include <tapedeck/ops/conv/question.h>
#include <tapedeck/ops/conv/tiling.h>

namespace tapedeck::conv_gemm {

struct GradTile {
  BoxTile x, y;
  int steps = 0, y_step = 16;  // pixels of y from a step to the next; 0 steps: there is no tile
  bool of_taps = false;        // whether taps of a row have boxes of their own
  int x_bytes = 0,
      y_bytes = 0;  // of a box in shared memory, with zeros after y's where it is read past its end
};

inline constexpr int kFlushOfParts = 4;  // steps whose products of two parts are added at once

/// Calls f with tiles of which a stage takes at most `most_bytes` of each of the operands' `parts`. Atoms
/// read up to `beyond` pixels past a tap. `row_taps`: how many of a row may have boxes of their own, or 0.
template <class F>
void for_grad_tiles(const BoxPlan& p, int x_blocks, int y_blocks, int beyond, int row_taps, int most_bytes,
                    const F& f) {
  const int height = p.h.most(), width = p.w.most(), halo_h = p.h.halo(), halo_w = p.w.halo();
  const auto offer = [&](GradTile t, int slack) {
    slack += t.of_taps ? 0 : beyond;
    t.x_bytes = (t.x.pixels() + 7) / 8 * 1024, t.y_bytes = (t.y.pixels() + slack + 7) / 8 * 1024;
    const int y_boxes = t.of_taps ? row_taps : y_blocks;
    if (x_blocks * t.x_bytes + y_boxes * t.y_bytes > most_bytes || t.y.pitch > kMostOfBox ||
        t.y.box_rows > kMostOfBox || t.x.box_rows > kMostOfBox)
      return;
    f(t);
  };
  // A part of the width: of some rows a step each, of one row several.
  const auto offer_part = [&](int rows, int columns) {
    GradTile t;
    t.x = {1, rows, columns, columns, rows};
    t.y = {1, rows, columns, columns + halo_w, rows + halo_h};
    t.steps = rows * columns / 16, t.y_step = rows > 1 ? t.y.pitch : 16;
    offer(t, 0);
  };
  for (int rows = 1; rows <= std::min(height, 32); ++rows) offer_part(rows, 16);
  for (int columns = 32; columns <= std::min(240, (width + 15) / 16 * 16); columns += 16)
    offer_part(1, columns);
  // Whole rows, one after another; or of several whole images, which are side by side in each row.
  constexpr int kMostImages = 64, kMostPixels = 512;  // of an image; where taps have boxes, of a tile
  const auto offer_rows = [&](int images, int rows, int wide, bool of_taps) {
    const int pixels = images * rows * wide;
    if (pixels % 16 != 0 || (images > 1 && pixels / images > kMostPixels)) return;
    GradTile t;
    t.of_taps = of_taps;
    t.x = {images, rows, width, wide, rows};
    t.y = {images, rows, width, wide, rows + halo_h};
    t.steps = pixels / 16;
    offer(t, of_taps ? 0 : halo_w);
  };
  const int pitch = width + halo_w, most_images = std::min(p.n, kMostImages);
  for (int wide = pitch; wide < pitch + 4 && wide <= kMostOfBox; ++wide) {
    for (int rows = 1; rows <= std::min(height, kMostOfBox); ++rows) offer_rows(1, rows, wide, false);
    if (height > kMostOfBox) continue;
    for (int images = 2; images <= most_images; ++images) offer_rows(images, height, wide, false);
  }
  if (row_taps == 0) return;
  for (int images = 1; images <= most_images && images * height * width <= kMostPixels; ++images)
    offer_rows(images, height, width, true);
}

/// How many of so many taps are read together, at most `most`: as many as share them evenly.
inline int taps_at_once(int count, int most) {
  const int shares = (count + most - 1) / most;
  return (count + shares - 1) / shares;
}
/// How many of so many blocks: such that few are without a use.
inline int blocks_at_once(int count, int most) {
  if (count <= most || most == 1) return std::min(count, most);
  const auto read = [count](int blocks) { return (count + blocks - 1) / blocks * blocks; };
  return read(most - 1) < read(most) ? most - 1 : most;
}
/// Warpgroups of a thread block: what registers allow. With operands of two parts there are sums twice.
constexpr int grad_warpgroups(int atoms, int parts = 1) {
  return atoms * parts >= 4 ? 2 : atoms == 3 ? 3 : 4;
}
/// Atoms of a warpgroup, at most.
constexpr int most_grad_atoms(int parts) {
  return parts == 1 ? 4 : 3;
}

struct BoxGradPlan {
  static constexpr int kMostSteps = 512;  // of a block, of which a kernel adds products without writing sums
  static constexpr int kMostStepsOfCluster = 128,  // no more than kMostSteps
      kLeastSums = 1 << 21;

  BoxGradPlan() = default;
  /// `shared_bytes` that stages may have; operands have so many parts. `limit`: of atoms.
  BoxGradPlan(const ConvTranspose2dGeometry& g, int shared_bytes, int operand_parts = 1, int limit = 4)
      : planes(g, false, 2),
        parts(operand_parts),
        most_bytes(shared_bytes),
        weights(g.weight_shape().count()) {
    const BoxPlan& p = planes;
    if (p.planes() > kMaxPlanes || p.w.planes > kMaxPhases || p.n == 0) return;
    int taps = 0, shift = 0;
    for (int j = 0; j < p.w.planes; ++j) {
      taps = std::max(taps, p.w.of[j].taps);
      shift = std::max(shift, p.w.of[j].shift);
    }
    const int x_all = ceil_div(p.to_channels, kBlockChannels),
              y_all = ceil_div(p.from_channels, kBlockChannels);
    atoms_are_taps = taps > 1;
    const int most_atoms = std::min(limit, most_grad_atoms(parts));
    atoms = atoms_are_taps ? taps_at_once(taps, most_atoms) : blocks_at_once(y_all, most_atoms);
    for (int j = 0; j < p.w.planes; ++j)
      by_row_units[j] = Divider(atoms_are_taps ? ceil_div(p.w.of[j].taps, atoms) : p.w.of[j].taps);
    int most = 0;
    for (int plane = 0; plane < p.planes(); ++plane) most = std::max(most, units_of(plane));
    units = ceil_div(most, ceil_div(most, grad_warpgroups(atoms, parts)));
    x_blocks = std::min(x_all, grad_warpgroups(atoms, parts) / units), y_blocks = atoms_are_taps ? 1 : atoms;
    x_tiles = ceil_div(x_all, x_blocks), y_tiles = ceil_div(y_all, y_blocks);
    by_x_tiles = Divider(x_tiles), by_y_tiles = Divider(y_tiles), by_groups = Divider(p.groups);
    for (int plane = 0; plane < p.planes(); ++plane)
      unit_tiles[plane + 1] = unit_tiles[plane] + ceil_div(units_of(plane), units);
    beyond = atoms_are_taps ? (atoms - 1) * shift : 0;
    row_taps = atoms_are_taps && taps <= atoms ? atoms : 0;
    double least = 0;
    for_tiles([&](const GradTile& t) {
      const double clocks = best_share(t).first;
      if (tile.steps == 0 || clocks < least) least = clocks, tile = t;
    });
    set_tile(tile);
  }

  bool exists() const { return tile.steps > 0; }
  /// Calls f with all tiles of which there are two stages or more.
  template <class F>
  void for_tiles(const F& f) const {
    for_grad_tiles(planes, x_blocks, y_blocks, beyond, row_taps, most_bytes / 2 / parts, f);
  }
  void set_tile(const GradTile& t) {
    tile = t;
    by_tiles_w = Divider(ceil_div(planes.w.most(), t.x.columns));
    by_tiles_h = Divider(ceil_div(planes.h.most(), t.x.rows));
    all_tiles = tiles_of(t);
    if (exists()) block_tiles = best_share(t).second;
  }
  TAPEDECK_HD int tiles() const { return all_tiles; }
  /// Of a stage: of each part, boxes of x, then boxes of y, of its blocks of channels or of taps of a row.
  TAPEDECK_HD int y_boxes() const { return y_boxes_of(tile); }
  TAPEDECK_HD int part_bytes() const { return part_bytes_of(tile); }
  TAPEDECK_HD int stage_bytes() const { return parts * part_bytes(); }
  int stages() const { return stages_of(stage_bytes()); }

  /// Tiles of a thread block, and how many blocks a work's sum is split among.
  int split_tiles() const { return block_tiles; }
  int splits() const { return ceil_div(tiles(), block_tiles); }
  /// Whether sums are written once, and nothing is added to them.
  bool is_written_once() const { return parts == 2 || block_tiles * tile.steps <= kMostSteps; }
  /// How many blocks of a work, neighbouring splits, add their sums before these are written, through each
  /// other's shared memory. Two take 2.5 us more (an H200), and pay for where there is little to multiply,
  /// but many sums; of four, an H200 has no more than 30 at once.
  int cluster() const { return cluster_of(tile, block_tiles, splits(), stage_bytes()); }

  /// About how many clocks of 1.7 GHz a GPU of 132 multiprocessors takes for products and sums. (By 3908
  /// times on an H200, of 342 pairs of a layer and bfloat16 or TF32 in up to 15 ways, whose other kernels a
  /// constant stands for; what two stages do not hide, and sums, by the layers of bench/conv_shapes.h, too.
  /// The ways of least clocks took 1.01 times as long as the fastest that was timed. Those chosen before, of
  /// the most atoms and, if there was one, a tile of three stages, took 1.06, and up to 2.3 times as long.)
  double clocks() const { return clocks_of(tile, block_tiles); }

  /// Where tile t begins in x.
  struct Pixels {
    int image, row, column;
  };
  TAPEDECK_HD Pixels pixels(int t) const {
    const int line = by_tiles_w.divide(t), image = by_tiles_h.divide(line);
    return {image * tile.x.images, by_tiles_h.modulo(line, image) * tile.x.rows,
            by_tiles_w.modulo(t, line) * tile.x.columns};
  }

  /// Blocks of channels, a plane and its taps' axes (i, j), and the first unit.
  struct Work {
    int x_block, y_block, group, plane, i, j, unit;
  };
  std::int64_t works() const {
    return std::int64_t{x_tiles} * y_tiles * planes.groups * unit_tiles[planes.planes()];
  }
  TAPEDECK_HD Work work(int index) const {
    Work w{};
    const auto next = [&index](const Divider& by) {
      const int quotient = by.divide(index), rest = by.modulo(index, quotient);
      index = quotient;
      return rest;
    };
    w.x_block = next(by_x_tiles) * x_blocks, w.y_block = next(by_y_tiles) * y_blocks;
    w.group = next(by_groups);
    while (index >= unit_tiles[w.plane + 1]) {
      ++w.plane;
      if (++w.j == planes.w.planes) w.j = 0, ++w.i;
    }
    w.unit = (index - unit_tiles[w.plane]) * units;
    return w;
  }

  /// `count` taps (h, w), (h, w + 1), ... of a work's plane.
  struct Unit {
    int h, w, count;
    bool exists;
  };
  TAPEDECK_HD Unit unit(const Work& work, int index) const {
    const BoxTaps &h = planes.h.of[work.i], &w = planes.w.of[work.j];
    const Divider& by = by_row_units[work.j];
    const int unit = work.unit + index, row = by.divide(unit);
    Unit u{};
    u.exists = row < h.taps;
    u.h = u.exists ? row : 0;
    const int share = by.modulo(unit, row);
    u.w = by.divide(share * w.taps);
    u.count = atoms_are_taps ? by.divide((share + 1) * w.taps) - u.w : atoms;
    return u;
  }
  /// The place in a box of y that the unit's first tap reads of the first pixel; and pixels from an atom to
  /// the next.
  TAPEDECK_HD int place(const Work& work, const Unit& u) const {
    return u.h * planes.h.of[work.i].shift * tile.y.row_pixels() + u.w * planes.w.of[work.j].shift;
  }
  TAPEDECK_HD int atom_step(const Work& work) const {
    return atoms_are_taps && !tile.of_taps ? planes.w.of[work.j].shift : tile.y_bytes / kPixelBytes;
  }

  /// The column of a plane of y, less that of x, where a work's box of this number begins.
  TAPEDECK_HD int column(const Work& work, int box) const {
    const BoxTaps& w = planes.w.of[work.j];
    return w.origin + (tile.of_taps ? box * w.shift : 0);
  }

  /// What an atom of a unit is: the kernel's tap and the block of channels of y.
  struct Atom {
    int kh, kw, y_block;
    bool exists;
  };
  TAPEDECK_HD Atom atom(const Work& work, const Unit& u, int index) const {
    const BoxTaps &h = planes.h.of[work.i], &w = planes.w.of[work.j];
    const int at = atoms_are_taps ? u.w + index : u.w;
    return {h.tap + u.h * h.tap_step, w.tap + at * w.tap_step, work.y_block + (atoms_are_taps ? 0 : index),
            u.exists && index < u.count};
  }
  /// Whether a unit's products are of one atom less than others'.
  TAPEDECK_HD bool is_narrow(const Unit& u) const { return u.count < atoms; }

  BoxPlan planes;  // of conv2d, whose planes are y's
  int parts = 1, most_bytes = 0;
  std::int64_t weights = 0;
  GradTile tile;
  bool atoms_are_taps = false;
  int atoms = 1, units = 1;  // of a warpgroup, of a thread block
  int x_blocks = 1, x_tiles = 1, y_blocks = 1,
      y_tiles = 1;                      // of 64 channels in a thread block, and how often
  int unit_tiles[kMaxPlanes + 1] = {};  // the first of a plane's
  int all_tiles = 0, block_tiles = 1;   // of pixels; of a thread block
  int beyond = 0, row_taps = 0;         // for_grad_tiles()
  Divider by_x_tiles, by_y_tiles, by_groups, by_tiles_w, by_tiles_h;
  Divider by_row_units[kMaxPhases];  // of a plane's row

 private:
  TAPEDECK_HD int y_boxes_of(const GradTile& t) const { return t.of_taps ? atoms : y_blocks; }
  TAPEDECK_HD int part_bytes_of(const GradTile& t) const {
    return x_blocks * t.x_bytes + y_boxes_of(t) * t.y_bytes;
  }
  int units_of(int plane) const {
    return planes.h.of[plane / planes.w.planes].taps *
           static_cast<int>(by_row_units[plane % planes.w.planes].divisor);
  }
  int tiles_of(const GradTile& t) const {
    return ceil_div(planes.n, t.x.images) * ceil_div(planes.h.most(), t.x.rows) *
           ceil_div(planes.w.most(), t.x.columns);
  }
  int stages_of(int bytes) const { return std::min(4, most_bytes / bytes); }
  int cluster_of(const GradTile& t, int mine, int splits, int bytes) const {
    const int sums_bytes = units * x_blocks * atoms * kBlockChannels * kBlockChannels * 4;
    const bool pays = mine * t.steps <= kMostStepsOfCluster && splits * weights >= kLeastSums;
    return pays && parts == 1 && splits % 2 == 0 && sums_bytes <= stages_of(bytes) * bytes ? 2 : 1;
  }
  /// Of blocks that have so many tiles.
  double clocks_of(const GradTile& t, int mine) const {
    constexpr double kStep = 24, kNarrowStep = 34,  // of 16 pixels and 64x64 channels; of one atom and part
        kLatency = 2050,                            // until a stage that is left has its next tile
        kTile = 50, kFewStages = 0.4;               // the latter of what two stages do not hide
    // Of a block; of 64x64 sums to be written; of each sum of the weight that a kernel adds; of a cluster.
    constexpr double kStart = 2250, kWrite = 570, kSum = 0.003, kCluster = 7600;
    const int splits = ceil_div(tiles_of(t), mine), bytes = parts * part_bytes_of(t),
              blocks = x_blocks * atoms * units, group = parts == 1 ? 1 : kFlushOfParts,
              steps = ceil_div(t.steps, group) * group;
    const double multiplied = steps * blocks *
                              (parts == 2   ? 3 * kStep
                               : atoms == 1 ? kNarrowStep
                                            : kStep),
                 brought = bytes / kBroughtBytes,
                 of_tile = std::max({multiplied, brought, kLatency / stages_of(bytes)}) + kTile +
                           (stages_of(bytes) < 3 ? kFewStages * std::min(multiplied, brought) : 0);
    const int cluster = cluster_of(t, mine, splits, bytes);
    return static_cast<double>(count(works() * splits, 132)) * (kStart + mine * of_tile + kWrite * blocks) +
           kSum * static_cast<double>(splits / cluster * weights) + (cluster > 1 ? kCluster : 0);
  }
  /// The least clocks of a tile, and of how many tiles for each thread block: all blocks run at once, or as
  /// many times as leave few multiprocessors without one.
  std::pair<double, int> best_share(const GradTile& t) const {
    constexpr int kMostTurns = 4;
    const int all = tiles_of(t);
    std::pair<double, int> best{0, 0};
    for (int turns = 1; turns <= kMostTurns; ++turns) {
      const std::int64_t wanted = std::clamp<std::int64_t>(132 * turns / works(), 1, ceil_div(all, 2));
      const int mine = static_cast<int>(count(all, wanted));
      if (mine == best.second) continue;
      const double clocks = clocks_of(t, mine);
      if (best.second == 0 || clocks < best.first) best = {clocks, mine};
    }
    return best;
  }
  static int ceil_div(int a, int b) { return (a + b - 1) / b; }
};

inline constexpr int kMostGradBytes = 225 * 1024;  // of shared memory
inline constexpr std::size_t kMostGradTiles = 24;  // of grad_ways() that have names

/// The plan of a layer, of operands in so many parts, and of which images; without tiles where there are few
/// channels, too.
struct BoxGradWay {
  /// How many sums of the weight's size are written before these are added: none where blocks write the
  /// weight itself, which they do if its channels are last.
  int written_sums(bool channels_last) const {
    const int sums = plan.splits() / plan.cluster();
    return sums == 1 && plan.is_written_once() && !fold.exists() && channels_last ? 0 : sums;
  }
  /// What tells it from other ways of a call.
  ConvTiling tiling() const {
    const BoxTile& x = plan.tile.x;
    return {fold.x, fold.y, plan.atoms, x.images, x.rows, x.columns, x.pitch, plan.tile.of_taps ? 1 : 0};
  }
  Fold fold;
  BoxGradPlan plan;
};

/// Calls f with the folds of a layer that have channels enough, and with their geometry; first without one.
/// (One side may have few if the other has enough; folds of such layers were not measured.)
template <class F>
void for_grad_folds(const ConvTranspose2dGeometry& g, const F& f) {
  constexpr std::int64_t kLeastChannels = 16;
  if (std::max(g.group_ci(), g.group_co()) >= kLeastChannels) f(Fold(), g);
  for_folds(g, 2, [&](const Fold& fold) {
    const ConvTranspose2dGeometry folded = fold.of(g);
    if (folded.ci >= kLeastChannels && folded.co >= kLeastChannels) f(fold, folded);
  });
}

/// Calls f with plans of a layer: of all folds and numbers of atoms.
template <class F>
void for_grad_plans(const ConvTranspose2dGeometry& g, int operand_parts, const F& f) {
  for_grad_folds(g, [&](const Fold& fold, const ConvTranspose2dGeometry& folded) {
    for (int atoms = most_grad_atoms(operand_parts); atoms > 0; --atoms) {
      const BoxGradPlan plan(folded, kMostGradBytes, operand_parts, atoms);
      if (plan.atoms == atoms && plan.exists()) f(fold, plan);
    }
  });
}

inline BoxGradWay best_grad_way(const ConvTranspose2dGeometry& g, int operand_parts) {
  constexpr double kUnfoldClocks = 4000;  // of the kernel that makes the gradient of folded ones
  BoxGradWay best;
  double least = 0;
  for_grad_plans(g, operand_parts, [&](const Fold& fold, const BoxGradPlan& plan) {
    const double clocks = plan.clocks() + (fold.exists() ? kUnfoldClocks : 0);
    if (!best.plan.exists() || clocks < least) least = clocks, best = {fold, plan};
  });
  return best;
}

/// Ways of all folds and numbers of atoms, with tiles in the order of their costs: at most so many of each.
inline std::vector<BoxGradWay> grad_ways(const ConvTranspose2dGeometry& g, int operand_parts,
                                         std::size_t most) {
  std::vector<BoxGradWay> ways;
  for_grad_plans(g, operand_parts, [&](const Fold& fold, BoxGradPlan plan) {
    std::vector<std::pair<double, GradTile>> tiles;
    plan.for_tiles([&](const GradTile& t) {
      plan.set_tile(t);
      tiles.emplace_back(plan.clocks(), t);
    });
    std::stable_sort(tiles.begin(), tiles.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    tiles.resize(std::min(tiles.size(), most));
    for (const auto& [clocks, tile] : tiles) {
      plan.set_tile(tile);
      const BoxGradWay way{fold, plan};
      const auto is_same = [&](const BoxGradWay& w) { return w.tiling() == way.tiling(); };
      if (std::none_of(ways.begin(), ways.end(), is_same)) ways.push_back(way);
    }
  });
  return ways;
}

/// best_grad_way(), which takes microseconds; or the way of a tiling, or none if there is no such way.
inline const BoxGradWay& box_grad_way(const ConvTranspose2dGeometry& g, int operand_parts,
                                      const ConvTiling& tiling = {}) {
  const auto [a, b] = tiling.code();
  return remembered(ConvQuestion(g, operand_parts, a, b), [&] {
    if (!tiling.exists()) return best_grad_way(g, operand_parts);
    for (const BoxGradWay& way : grad_ways(g, operand_parts, kMostGradTiles))
      if (way.tiling() == tiling) return way;
    return BoxGradWay();
  });
}

}  // namespace tapedeck::conv_gemm
