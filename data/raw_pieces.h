// A text cut at the added tokens that are looked for as they are written, such as [MASK]: the first
// stage of encoding. It reads ahead no further than it is asked to.
#pragma once

#include <cstddef>
#include <string_view>

#include "data/added_tokens.h"
#include "data/bert_normalizer.h"

namespace maxim {

class RawPieces {
 public:
  RawPieces(const AddedTokenMatcher& matcher, const BertNormalizer& normalizer,
            std::string_view text)
      : matcher_(matcher), normalizer_(normalizer), text_(text) {}

  // The next part of the piece, of about `want` > 0 bytes, cut where the normaliser may be cut.
  // Empty when the piece is over.
  std::string_view take(size_t want);
  bool piece_is_over() const { return closed_ && begin_ >= end_; }

  // Called when the piece is over: the added token behind it, after which the next piece starts;
  // nullptr when the text is over.
  const AddedToken* next_token();

 private:
  void look_ahead(size_t bytes);
  void close_piece(const AddedToken& token, size_t start, size_t end);
  size_t surely_in_piece() const;

  const AddedTokenMatcher& matcher_;
  const BertNormalizer& normalizer_;
  const std::string_view text_;
  size_t piece_begin_ = 0;
  size_t begin_ = 0;                   // of what has not been taken of the piece
  size_t searched_ = 0;                // up to here all added tokens are found
  bool closed_ = false;                // the end of the piece is known:
  size_t end_ = 0;                     // its end,
  size_t next_begin_ = 0;              // the beginning of the next one
  const AddedToken* token_ = nullptr;  // and what stands between
};

}  // namespace maxim
