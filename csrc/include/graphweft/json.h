// JSON texts as values: what the manifest of a store needs, no more.
//
// Numbers are kept as 64-bit integers; a fraction or an exponent is refused, since no count of a store has one. Escapes
// are undone, \u ones to UTF-8. Every failure is one line with the byte where the text went wrong.
#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace gw {

struct json_value {
  enum class kind { null, boolean, integer, text, list, object };

  kind type = kind::null;
  int64_t number = 0;  // of a boolean 0 or 1
  std::string text;
  std::vector<json_value> items;
  std::map<std::string, json_value> fields;
};

class json_reader {
 public:
  json_reader(const std::string& text, std::string who) : text_(text), who_(std::move(who)) {}

  json_value whole() {
    json_value found = value(0);
    skip_space();
    if (at_ != text_.size()) fail("the end");
    return found;
  }

 private:
  static constexpr int most_levels = 32;

  [[noreturn]] void fail(const std::string& expected) const {
    throw std::runtime_error(who_ + ": expected " + expected + " at byte " + std::to_string(at_));
  }

  void skip_space() {
    while (at_ < text_.size() && std::string(" \t\n\r").find(text_[at_]) != std::string::npos) ++at_;
  }

  bool take(char wanted) {
    skip_space();
    if (at_ >= text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }

  bool take_word(const std::string& word) {
    if (text_.compare(at_, word.size(), word) != 0) return false;
    at_ += word.size();
    return true;
  }

  json_value value(int level) {
    if (level > most_levels) fail("fewer levels");
    skip_space();
    json_value found;
    if (take('{')) {
      found.type = json_value::kind::object;
      if (take('}')) return found;
      do {
        skip_space();
        std::string name = string();
        if (!take(':')) fail("a colon");
        if (!found.fields.emplace(std::move(name), value(level + 1)).second) fail("each name once");
      } while (take(','));
      if (!take('}')) fail("a comma or a brace");
    } else if (take('[')) {
      found.type = json_value::kind::list;
      if (take(']')) return found;
      do found.items.push_back(value(level + 1));
      while (take(','));
      if (!take(']')) fail("a comma or a bracket");
    } else if (at_ < text_.size() && text_[at_] == '"') {
      found.type = json_value::kind::text;
      found.text = string();
    } else if (take_word("true") || take_word("false")) {
      found.type = json_value::kind::boolean;
      found.number = text_[at_ - 2] == 'u' ? 1 : 0;
    } else if (!take_word("null")) {
      found.type = json_value::kind::integer;
      found.number = integer();
    }
    return found;
  }

  int64_t integer() {
    const bool is_negative = take('-');
    if (at_ >= text_.size() || text_[at_] < '0' || text_[at_] > '9') fail("a value");
    uint64_t found = 0;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
      const auto digit = static_cast<uint64_t>(text_[at_] - '0');
      if (found > (static_cast<uint64_t>(INT64_MAX) - digit) / 10) fail("an integer of 64 bits");
      found = 10 * found + digit;
      ++at_;
    }
    if (at_ < text_.size() && std::string(".eE").find(text_[at_]) != std::string::npos) fail("an integer");
    return is_negative ? -static_cast<int64_t>(found) : static_cast<int64_t>(found);
  }

  std::string string() {
    if (at_ >= text_.size() || text_[at_] != '"') fail("a text");
    ++at_;
    std::string found;
    while (at_ < text_.size() && text_[at_] != '"') {
      if (static_cast<unsigned char>(text_[at_]) < 0x20) fail("a printed character");
      if (text_[at_] != '\\') {
        found += text_[at_++];
        continue;
      }
      ++at_;
      const std::string from = "\"\\/bfnrt", to = "\"\\/\b\f\n\r\t";
      const char escape = at_ < text_.size() ? text_[at_] : '\0';
      const size_t place = escape == '\0' ? std::string::npos : from.find(escape);
      if (escape != 'u' && place == std::string::npos) fail("an escape");
      ++at_;
      if (escape == 'u')
        append_utf8(found);
      else
        found += to[place];
    }
    if (at_ >= text_.size()) fail("the end of a text");
    ++at_;
    return found;
  }

  uint32_t four_digits() {
    uint32_t found = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      const char digit = at_ < text_.size() ? text_[at_] : '\0';
      const size_t place = digit == '\0' ? std::string::npos : std::string("0123456789abcdefABCDEF").find(digit);
      if (place == std::string::npos) fail("four digits of an escape");
      found = 16 * found + static_cast<uint32_t>(place < 16 ? place : place - 6);
    }
    return found;
  }

  void append_utf8(std::string& out) {
    uint32_t code = four_digits();
    if (code >= 0xd800 && code < 0xdc00) {
      if (!take_word("\\u")) fail("the second half of a pair");
      const uint32_t low = four_digits();
      if (low < 0xdc00 || low > 0xdfff) fail("the second half of a pair");
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    const auto byte = [&](uint32_t bits) { out += static_cast<char>(bits); };
    if (code < 0x80) return byte(code);
    if (code < 0x800) return byte(0xc0 | code >> 6), byte(0x80 | (code & 0x3f));
    if (code < 0x10000) return byte(0xe0 | code >> 12), byte(0x80 | (code >> 6 & 0x3f)), byte(0x80 | (code & 0x3f));
    byte(0xf0 | code >> 18), byte(0x80 | (code >> 12 & 0x3f)), byte(0x80 | (code >> 6 & 0x3f));
    byte(0x80 | (code & 0x3f));
  }

  const std::string& text_;
  std::string who_;
  size_t at_ = 0;
};

}  // namespace gw
