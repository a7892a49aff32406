// What a run says: one JSON object a line, numbers as Python writes them.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace program {

// The shortest text that reads back as the same number, in `room`: numbers of all lengths ask for no memory.
std::string_view number(double value, std::array<char, 48>& room);

// One JSON object, written key by key.
class Json {
 public:
  Json() { text_.reserve(usual_room); }
  Json& add(const char* key, const std::string& text);
  Json& add(const char* key, const char* text) { return add(key, std::string(text)); }
  Json& add(const char* key, int64_t value) { return raw(key, std::to_string(value)); }
  Json& add(const char* key, double value);  // what is not finite is null
  [[nodiscard]] std::string text() const;

 private:
  Json& raw(const char* key, std::string_view value);
  static constexpr size_t usual_room = 1000;  // lines of all lengths take the same room, which is kept
  std::string text_;
};

// Largest resident memory of this process so far, MiB.
double peak_rss_mb();

}  // namespace program
