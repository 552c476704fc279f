#include "data/raw_pieces.h"

#include <algorithm>

#include "data/bert_unicode.h"

namespace maxim {

namespace {

// Whether text[start, end) has no word character on either side.
bool stands_alone(std::string_view text, size_t start, size_t end) {
  const char* begin = text.data();
  const char* stop = begin + text.size();
  return (start == 0 || !is_word_character(decode_utf8_backwards(begin, begin + start).value)) &&
         (end == text.size() || !is_word_character(decode_utf8(begin + end, stop).value));
}

// Where the whitespace that ends text[begin, end) starts.
size_t without_whitespace(std::string_view text, size_t begin, size_t end) {
  while (end > begin) {
    const CodePoint c = decode_utf8_backwards(text.data() + begin, text.data() + end);
    if (!is_whitespace(c.value)) break;
    end -= c.bytes;
  }
  return end;
}

}  // namespace

std::string_view RawPieces::take(size_t want) {
  while (!piece_is_over()) {
    const size_t end = closed_ ? end_ : surely_in_piece();
    if (end > begin_) {
      const size_t left = end - begin_;
      const size_t n = closed_ && left <= want
                           ? left
                           : normalizer_.safe_cut(text_.substr(begin_), std::min(want, left));
      begin_ += n;
      if (n > 0) return text_.substr(begin_ - n, n);
    }
    if (!closed_) look_ahead(want);
    want *= 2;  // so that a place to cut is found in linear time, wherever it is
  }
  return {};
}

const AddedToken* RawPieces::next_token() {
  const AddedToken* token = token_;
  if (token != nullptr) {
    piece_begin_ = begin_ = next_begin_;
    closed_ = false;
    token_ = nullptr;
  }
  return token;
}

// What stands before searched_, less whitespace that a token behind it may take along.
size_t RawPieces::surely_in_piece() const {
  size_t end = searched_;
  if (!matcher_.any_strips_left()) return end;
  while (end > begin_ && end < text_.size() && is_utf8_continuation(text_[end])) --end;
  return without_whitespace(text_, begin_, end);
}

void RawPieces::look_ahead(size_t bytes) {
  const size_t stop = std::min(text_.size(), searched_ + bytes);
  if (matcher_.empty()) searched_ = stop;
  while (searched_ < stop) {
    const size_t start = searched_;
    if (!matcher_.may_start_with(text_[start])) {
      ++searched_;
      continue;
    }
    const auto match = matcher_.at(text_.data() + start, text_.data() + text_.size());
    if (match.token == nullptr) {
      ++searched_;
      continue;
    }
    searched_ = match.end - text_.data();
    if (match.token->single_word && !stands_alone(text_, start, searched_)) continue;
    return close_piece(*match.token, start, searched_);
  }
  if (searched_ >= text_.size()) closed_ = true, end_ = text_.size();
}

void RawPieces::close_piece(const AddedToken& token, size_t start, size_t end) {
  if (token.lstrip) start = without_whitespace(text_, piece_begin_, start);
  if (token.rstrip)
    while (end < text_.size()) {
      const CodePoint c = decode_utf8(text_.data() + end, text_.data() + text_.size());
      if (!is_whitespace(c.value)) break;
      end += c.bytes;
    }
  closed_ = true;
  // A token may start in the whitespace that the one before it took along: then the piece is empty.
  end_ = std::max(start, piece_begin_);
  next_begin_ = end;
  token_ = &token;
}

}  // namespace maxim
