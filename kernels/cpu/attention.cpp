// Multi-head attention over packed sequences (Vaswani et al. 2017), in the manner of
// FlashAttention (Dao et al. 2022): no probability outlives its block of query rows.
//
//   forward    s = q k^T / sqrt(d), p = softmax(s) over the keys, out = (m p) v, m = dropout's 0 or
//              1 / (1 - probability); saved: log_sum_exp of each row of s
//   backward   p = exp(s - log_sum_exp) again; D = sum over columns of d_out * out
//              d_v = (m p)^T d_out        d_s = p (m (d_out v^T) - D) / sqrt(d)
//              d_q = d_s k                d_k = d_s^T q
//
// One task is one head of one sequence: n keys, the first of its r rows. It reads and writes d
// columns of its rows that no other task touches, and walks its query rows in panels of kPanel, so
// the bits do not depend on the threads. A panel has its query rows along the vector lanes: scores
// and probabilities are [n][panel] in the thread's scratch, so the softmax is vertical, keys need
// no padding, and one Philox draw per lane decides 8 keys of that lane's row.
//
// Forward keeps all n keys of a panel: 128 n bytes (1 MB at n = 8,192). Backward tiles the keys by
// kKeyTile, and adds each panel to d_k and d_v in place. FLOPs a head: 4 r n d forward, 10 r n d
// backward.
#include <omp.h>

#include <cmath>
#include <initializer_list>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/panel.h"

namespace maxim {
namespace {

// Two blocks of kKeyTile x kPanel floats are 64 KB of L2, and the panels and a tile of K or V of d
// = 32 fit L1 beside what is being read.
constexpr int64_t kKeyTile = 256;
constexpr int kIntoL2 = 2;  // a locality of __builtin_prefetch: into L1 it gains nothing, measured
constexpr int64_t kCacheLine = 64 / sizeof(float);
// Room for scores, taken at the first call so that no longer sequence asks for more. It is 1 MB of
// addresses a thread; pages that are never touched cost nothing.
constexpr int64_t kLeastScratchKeys = 8192;
// Heads a thread takes at a time: neighbours share pages and the lines of log_sum_exp.
constexpr int kHeadsAtATime = 4;
// Rows of the next head that are fetched during this one: 256 of d = 32 are 256 KB in the backward
// pass, a quarter of L2. Longer sequences hide their loads behind r n work.
constexpr int64_t kMostFetchedRows = 256;

// One head of one sequence. Row i of q lies at qkv + i * 3 hidden; k and v lie `hidden` and 2
// `hidden` further.
struct Head {
  int64_t rows, keys, width;  // r, n, d
  int64_t hidden, heads;
  const int32_t* positions;
  uint32_t random_row, random_column;
  uint32_t first_group;  // head << 16, of dropout's counter
  float scale;           // 1 / sqrt(d)
};

// Query rows [first, first + count) of a head, one a lane; lanes beyond `count` repeat the last
// row.
struct PanelRows {
  int64_t first, count;
  int64_t vectors, lanes;

  PanelRows(const Head& head, int64_t first_row)
      : first(first_row),
        count(std::min<int64_t>(kPanel, head.rows - first_row)),
        vectors((count + kLanes - 1) / kLanes),
        lanes(vectors * kLanes) {}
  int64_t row(int64_t lane) const { return first + std::min(lane, count - 1); }
};

// Which of 8 neighbouring keys the query rows of kLanes lanes keep.
class KeptKeys {
 public:
  KeptKeys(const Dropout& dropout, const Head& head, Words positions, int64_t first_key)
      : threshold_(dropout_threshold(dropout.probability) << 16) {
    // Philox works on the low words of 64-bit lanes: even and odd rows apart.
    const Words counter = positions | dropout.site << 16;
    const uint32_t group = head.first_group | static_cast<uint32_t>(first_key / kDropoutGroup);
    const LongWords zero = {};
    const auto draw = [&](LongWords position) {
      return philox_lanes({zero + group, position, zero + head.random_row, zero + dropout.step},
                          static_cast<uint32_t>(dropout.seed),
                          static_cast<uint32_t>(dropout.seed >> 32) ^ head.random_column);
    };
    const PhiloxLanes even = draw((LongWords)counter), odd = draw((LongWords)counter >> 32);
    const auto merge = [](LongWords e, LongWords o) {
      return (Words)((e & 0xFFFFFFFFu) | o << 32);
    };
    word_[0] = merge(even.c0, odd.c0);
    word_[1] = merge(even.c1, odd.c1);
    word_[2] = merge(even.c2, odd.c2);
    word_[3] = merge(even.c3, odd.c3);
  }
  // All bits set in the lanes that keep key first_key + i. Comparing in the upper half of the word
  // saves a mask: the lower half cannot change >=.
  Ints operator[](int i) const {
    return (i % 2 == 0 ? word_[i / 2] << 16 : word_[i / 2]) >= threshold_;
  }

 private:
  Words word_[4];
  uint32_t threshold_;
};

// Scores to m p * sum, vertically: `scores` is [keys][lanes] and becomes exp(score - maximum), 0
// where dropout says so. Per lane: the maximum and the sum over keys.
void softmax(float* scores, const Head& head, const PanelRows& panel, const Dropout& dropout,
             float* sums, float* maxima) {
  for (int64_t v = 0; v < panel.vectors; ++v) {
    float* const column = scores + v * kLanes;
    Words positions;
    for (int i = 0; i < kLanes; ++i) positions[i] = head.positions[panel.row(v * kLanes + i)];
    Floats most = load(column);
    for (int64_t j = 1; j < head.keys; ++j) most = maximum(most, load(column + j * panel.lanes));
    Floats sum = {};
    for (int64_t first = 0; first < head.keys; first += kDropoutGroup) {
      const int keys = static_cast<int>(std::min<int64_t>(kDropoutGroup, head.keys - first));
      float* p = column + first * panel.lanes;
      if (!dropout.active()) {
        for (int j = 0; j < keys; ++j, p += panel.lanes) {
          const Floats e = exp(load(p) - most);
          sum += e;
          store(p, e);
        }
        continue;
      }
      const KeptKeys kept(dropout, head, positions, first);
      for (int j = 0; j < keys; ++j, p += panel.lanes) {
        const Floats e = exp(load(p) - most);
        sum += e;
        store(p, kept[j] ? e : Floats{});
      }
    }
    store(sums + v * kLanes, sum);
    store(maxima + v * kLanes, most);
  }
}

void forward_head(float* out, float* log_sum_exp, const float* qkv, const Head& head,
                  const Dropout& dropout, float* scratch) {
  const int64_t qkv_row = 3 * head.hidden;
  const float* k = qkv + head.hidden;
  const float* v = k + head.hidden;
  float* const q_panel = scratch;                  // [d][lanes]
  float* const p = q_panel + head.width * kPanel;  // [n][lanes]
  float sums[kPanel], maxima[kPanel];
  for (int64_t first = 0; first < head.rows; first += kPanel) {
    const PanelRows panel(head, first);
    pack_panel(q_panel, panel.lanes, qkv + first * qkv_row, qkv_row, panel.count, head.width,
               head.scale);
    multiply({.c = p,
              .c_row = panel.lanes,
              .a = k,
              .a_row = qkv_row,
              .a_step = 1,
              .b = q_panel,
              .b_row = panel.lanes,
              .rows = head.keys,
              .columns = panel.lanes,
              .depth = head.width});
    softmax(p, head, panel, dropout, sums, maxima);
    float* const o = out + first * head.hidden;
    multiply({.c = o,
              .c_row = head.hidden,
              .a = p,
              .a_row = 1,
              .a_step = panel.lanes,
              .b = v,
              .b_row = qkv_row,
              .rows = panel.count,
              .columns = head.width,
              .depth = head.keys});
    for (int64_t i = 0; i < panel.count; ++i) {
      const float factor = (dropout.active() ? dropout_scale(dropout.probability) : 1) / sums[i];
      for (int64_t c = 0; c < head.width; c += kLanes)
        store(o + i * head.hidden + c, load(o + i * head.hidden + c) * factor);
      log_sum_exp[(first + i) * head.heads] = maxima[i] + std::log(sums[i]);
    }
  }
}

// Probabilities and the gradient of the scores of one panel and keys [first_key, first_key + keys):
// p comes in as scores [keys][lanes] and goes out as m p, d_p comes in as d_out v^T and goes out as
// d_s. `log_sum_exp` and `d_dot_out` (D) are per lane.
void softmax_backward(float* p, float* d_p, const Head& head, const PanelRows& panel,
                      const Dropout& dropout, int64_t first_key, int64_t keys,
                      const float* log_sum_exp, const float* d_dot_out) {
  const float dropped_scale = dropout.active() ? dropout_scale(dropout.probability) : 1;
  for (int64_t v = 0; v < panel.vectors; ++v) {
    Words positions;
    for (int i = 0; i < kLanes; ++i) positions[i] = head.positions[panel.row(v * kLanes + i)];
    const Floats log_sum = load(log_sum_exp + v * kLanes), dot = load(d_dot_out + v * kLanes);
    for (int64_t j = 0; j < keys; j += kDropoutGroup) {
      const int group = static_cast<int>(std::min<int64_t>(kDropoutGroup, keys - j));
      float* x = p + j * panel.lanes + v * kLanes;
      float* y = d_p + j * panel.lanes + v * kLanes;
      if (!dropout.active()) {
        for (int i = 0; i < group; ++i, x += panel.lanes, y += panel.lanes) {
          const Floats e = exp(load(x) - log_sum);
          store(x, e);
          store(y, e * (load(y) - dot) * head.scale);
        }
        continue;
      }
      const KeptKeys kept(dropout, head, positions, first_key + j);
      for (int i = 0; i < group; ++i, x += panel.lanes, y += panel.lanes) {
        const Floats e = exp(load(x) - log_sum);
        const Floats mask = kept[i] ? broadcast(dropped_scale) : Floats{};
        store(x, e * mask);
        store(y, e * (load(y) * mask - dot) * head.scale);
      }
    }
  }
}

struct HeadGradient {
  float* d_qkv;
  const float* d_out;
  const float* out;
  const float* log_sum_exp;
  const float* qkv;
};

void backward_head(const HeadGradient& g, const Head& head, const Dropout& dropout,
                   float* scratch) {
  const int64_t qkv_row = 3 * head.hidden, hidden = head.hidden, width = head.width;
  const float *k = g.qkv + hidden, *v = k + hidden;
  float *d_k = g.d_qkv + hidden, *d_v = d_k + hidden;
  float* const q_panel = scratch;                       // [d][lanes]
  float* const d_out_panel = q_panel + width * kPanel;  // [d][lanes]
  float* const p = d_out_panel + width * kPanel;        // [keys][lanes]
  float* const d_p = p + kKeyTile * kPanel;             // [keys][lanes]
  float log_sum_exp[kPanel], dot[kPanel];
  for (int64_t first = 0; first < head.rows; first += kPanel) {
    const PanelRows panel(head, first);
    const float* q = g.qkv + first * qkv_row;
    const float* d_out = g.d_out + first * hidden;
    pack_panel(q_panel, panel.lanes, q, qkv_row, panel.count, width, head.scale);
    pack_panel(d_out_panel, panel.lanes, d_out, hidden, panel.count, width);
    for (int64_t i = 0; i < panel.lanes; ++i) {
      log_sum_exp[i] = g.log_sum_exp[panel.row(i) * head.heads];
      Floats sum = {};
      for (int64_t c = 0; c < width; c += kLanes)
        sum += load(g.d_out + panel.row(i) * hidden + c) * load(g.out + panel.row(i) * hidden + c);
      dot[i] = sum_of_lanes(sum);
    }
    for (int64_t key = 0; key < head.keys; key += kKeyTile) {
      const int64_t keys = std::min(kKeyTile, head.keys - key);
      const float *k_tile = k + key * qkv_row, *v_tile = v + key * qkv_row;
      multiply({.c = p,
                .c_row = panel.lanes,
                .a = k_tile,
                .a_row = qkv_row,
                .a_step = 1,
                .b = q_panel,
                .b_row = panel.lanes,
                .rows = keys,
                .columns = panel.lanes,
                .depth = width});
      multiply({.c = d_p,
                .c_row = panel.lanes,
                .a = v_tile,
                .a_row = qkv_row,
                .a_step = 1,
                .b = d_out_panel,
                .b_row = panel.lanes,
                .rows = keys,
                .columns = panel.lanes,
                .depth = width});
      softmax_backward(p, d_p, head, panel, dropout, key, keys, log_sum_exp, dot);
      multiply({.c = d_v + key * qkv_row,
                .c_row = qkv_row,
                .a = p,
                .a_row = panel.lanes,
                .a_step = 1,
                .b = d_out,
                .b_row = hidden,
                .rows = keys,
                .columns = width,
                .depth = panel.count,
                .add = first > 0});
      multiply({.c = d_k + key * qkv_row,
                .c_row = qkv_row,
                .a = d_p,
                .a_row = panel.lanes,
                .a_step = 1,
                .b = q,
                .b_row = qkv_row,
                .rows = keys,
                .columns = width,
                .depth = panel.count,
                .add = first > 0});
      multiply({.c = g.d_qkv + first * qkv_row,
                .c_row = qkv_row,
                .a = d_p,
                .a_row = 1,
                .a_step = panel.lanes,
                .b = k_tile,
                .b_row = qkv_row,
                .rows = panel.count,
                .columns = width,
                .depth = keys,
                .add = key > 0});
    }
  }
  for (int64_t i = head.keys; i < head.rows; ++i) {
    std::fill_n(d_k + i * qkv_row, width, 0.0f);
    std::fill_n(d_v + i * qkv_row, width, 0.0f);
  }
}

// Fetches the pieces of `rows` rows of x that belong to head `h` ahead of their use: 128 or 256
// bytes a whole row apart, which hardware prefetchers do not follow. Twice the speed at 20 rows.
void fetch(const Tensor& x, int64_t hidden, int64_t width, int64_t first, int64_t rows, int64_t h) {
  const float* data = x.as<float>() + h * width;
  for (int64_t piece = 0; piece < x.cols(); piece += hidden)
    for (int64_t i = first; i < first + rows; ++i)
      for (int64_t c = 0; c < width; c += kCacheLine)
        __builtin_prefetch(data + i * x.cols() + piece + c, 0, kIntoL2);
}

// Calls visit(head, its first row in the batch, h, scratch of `floats`) for every head h of every
// sequence that has rows. `touched`: the tensors of H or 3 H columns that visit reads or writes.
template <class Visit>
void for_each_head(const Sequences& sequences, int64_t hidden, int64_t heads,
                   std::initializer_list<Tensor> touched, Scratch& scratch, int64_t floats,
                   Visit visit) {
  const int32_t* offsets = sequences.offsets.as<int32_t>();
  const int32_t* key_counts = sequences.key_counts.as<int32_t>();
  const int64_t count = sequences.count(), width = hidden / heads;
  for (int64_t s = 0; s < count; ++s) {
    const int64_t rows = offsets[s + 1] - offsets[s];
    MAXIM_CHECK(
        key_counts[s] <= rows && (rows == 0 || key_counts[s] > 0) && rows <= sequences.longest,
        "sequence {} has {} rows and {} keys, the longest {} rows", s, rows, key_counts[s],
        sequences.longest);
  }
  float* const blocks = scratch.floats(omp_get_max_threads() * floats, "attention");
#pragma omp parallel for schedule(dynamic, kHeadsAtATime)
  for (int64_t i = 0; i < count * heads; ++i) {
    const int64_t s = i / heads, h = i % heads, first = offsets[s], rows = offsets[s + 1] - first;
    // What comes next, most likely to the same thread.
    const int64_t next_s = (i + 1) / heads, next_h = (i + 1) % heads;
    if (next_s < count && rows <= kMostFetchedRows)
      for (const Tensor& x : touched)
        fetch(x, hidden, width, offsets[next_s],
              std::min<int64_t>(kMostFetchedRows, offsets[next_s + 1] - offsets[next_s]), next_h);
    if (rows == 0) continue;
    const Head head = {.rows = rows,
                       .keys = key_counts[s],
                       .width = width,
                       .hidden = hidden,
                       .heads = heads,
                       .positions = sequences.positions.as<int32_t>() + first,
                       .random_row = sequences.random_rows.as<uint32_t>()[s],
                       .random_column = sequences.random_columns.as<uint32_t>()[s],
                       .first_group = static_cast<uint32_t>(h) << 16,
                       .scale = 1 / std::sqrt(static_cast<float>(width))};
    visit(head, first, h, blocks + omp_get_thread_num() * floats);
  }
}

void check_shapes(const Tensor& out, const Tensor& log_sum_exp, const Tensor& qkv, int64_t heads,
                  const Sequences& sequences) {
  const int64_t tokens = sequences.tokens(), hidden = out.cols();
  MAXIM_CHECK(out.rows() == tokens && qkv.rows() == tokens && qkv.cols() == 3 * hidden &&
                  log_sum_exp.size() == tokens * heads,
              "{} tokens, {} heads: out [{}, {}], qkv [{}, {}], log_sum_exp of {}", tokens, heads,
              out.rows(), hidden, qkv.rows(), qkv.cols(), log_sum_exp.size());
  MAXIM_CHECK(heads > 0 && (hidden == 32 * heads || hidden == 64 * heads),
              "{} columns in {} heads: a head has 32 or 64", hidden, heads);
}

}  // namespace

void CpuOps::attention_forward(const AttentionForward& args, const Sequences& sequences) {
  check_shapes(args.out, args.log_sum_exp, args.qkv, args.heads, sequences);
  const int64_t hidden = args.out.cols(), width = hidden / args.heads;
  float* out = args.out.as<float>();
  float* log_sum_exp = args.log_sum_exp.as<float>();
  const float* qkv = args.qkv.as<float>();
  for_each_head(sequences, hidden, args.heads, {args.qkv, args.out}, panels_,
                (width + std::max(kLeastScratchKeys, sequences.longest)) * kPanel,
                [&](const Head& head, int64_t row, int64_t h, float* scratch) {
                  forward_head(out + row * hidden + h * width, log_sum_exp + row * args.heads + h,
                               qkv + row * 3 * hidden + h * width, head, args.dropout, scratch);
                });
}

void CpuOps::attention_backward(const AttentionBackward& args, const Sequences& sequences) {
  check_shapes(args.out, args.log_sum_exp, args.qkv, args.heads, sequences);
  MAXIM_CHECK(args.d_qkv.size() == args.qkv.size() && args.d_out.size() == args.out.size(),
              "d_qkv of {} for {}, d_out of {} for {}", args.d_qkv.size(), args.qkv.size(),
              args.d_out.size(), args.out.size());
  const int64_t hidden = args.out.cols(), width = hidden / args.heads;
  const HeadGradient all = {.d_qkv = args.d_qkv.as<float>(),
                            .d_out = args.d_out.as<float>(),
                            .out = args.out.as<float>(),
                            .log_sum_exp = args.log_sum_exp.as<float>(),
                            .qkv = args.qkv.as<float>()};
  for_each_head(sequences, hidden, args.heads, {args.qkv, args.out, args.d_out, args.d_qkv},
                panels_, 2 * (width + kKeyTile) * kPanel,
                [&](const Head& head, int64_t row, int64_t h, float* scratch) {
                  const int64_t at = row * hidden + h * width, at3 = 3 * row * hidden + h * width;
                  backward_head({.d_qkv = all.d_qkv + at3,
                                 .d_out = all.d_out + at,
                                 .out = all.out + at,
                                 .log_sum_exp = all.log_sum_exp + row * args.heads + h,
                                 .qkv = all.qkv + at3},
                                head, args.dropout, scratch);
                });
}

}  // namespace maxim
