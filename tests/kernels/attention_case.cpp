#include "tests/kernels/attention_case.h"

#include <algorithm>

#include "tests/reference/random.h"
#include "tests/reference/rounding.h"

namespace maxim_tests {
AttentionCase::AttentionCase(const std::vector<int32_t>& lengths, int64_t heads_, int64_t width_,
                             float probability, int32_t expansion, float scale)
    : rows(ragged(lengths)),
      heads(heads_),
      width(width_),
      dropout{probability, 0x123456789ABCDEFull, 17, 5} {
  for (int32_t& keys : rows.key_counts) keys = std::max(std::min(keys, 1), keys - expansion);
  qkv = random_floats(rows.tokens() * 3 * hidden(), 1, scale);
  d_out = random_floats(rows.tokens() * hidden(), 2);
}

AttentionCase AttentionCase::as(maxim::DType new_type) const {
  AttentionCase c = *this;
  c.type = new_type;
  c.qkv = rounded(new_type, qkv);
  c.d_out = rounded(new_type, d_out);
  return c;
}

AttentionResults run(Backend& backend, const AttentionCase& c) {
  Operands o(*backend.device);
  const maxim::Sequences sequences = o.put(c.rows);
  const int64_t t = c.rows.tokens();
  const maxim::AttentionForward f{.out = o.output(t, c.hidden(), c.type),
                                  .log_sum_exp = o.output(t, c.heads),
                                  .qkv = o.put(c.qkv, t, 3 * c.hidden(), c.type),
                                  .heads = c.heads,
                                  .dropout = c.dropout};
  backend.ops->attention_forward(f, sequences);
  const maxim::AttentionBackward b{.d_qkv = o.output(t, 3 * c.hidden(), c.type),
                                   .d_out = o.put(c.d_out, t, c.hidden(), c.type),
                                   .out = f.out,
                                   .log_sum_exp = f.log_sum_exp,
                                   .qkv = f.qkv,
                                   .heads = c.heads,
                                   .dropout = c.dropout};
  backend.ops->attention_backward(b, sequences);
  return {o.get(f.out), o.get(f.log_sum_exp), o.get(b.d_qkv)};
}

}  // namespace maxim_tests
