#include "kernels/cpu/row_blocks.h"

#include "tests/catch.h"

using maxim::RowBlocks;

TEST_CASE("row blocks cover every row once and are never more than 64") {
  for (int64_t rows = 0; rows < 5000; ++rows) {
    const RowBlocks blocks(rows);
    int64_t next = 0;
    for (int64_t b = 0; b < blocks.count(); ++b) {
      if (blocks.begin(b) != next || blocks.end(b) <= next) FAIL(rows << " rows, block " << b);
      next = blocks.end(b);
    }
    if (next != rows || blocks.count() > RowBlocks::kMostBlocks)
      FAIL(rows << " rows: " << blocks.count() << " blocks end at " << next);
  }
  CHECK(RowBlocks(1152).count() == 36);
  CHECK(RowBlocks(5000).count() == 64);
}
