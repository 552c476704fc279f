// Names of kernels, from the program's own symbol table (.symtab, which a build keeps unless it is
// stripped): the dynamic one, which dladdr reads, lacks functions of unnamed namespaces.
#include <cxxabi.h>
#include <elf.h>
#include <link.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>

#include "tests/emulator/launch.h"

namespace maxim_emulated {
namespace {

// Addresses, as linked, of all functions.
std::map<uintptr_t, std::string> read_symbols() {
  std::map<uintptr_t, std::string> symbols;
  std::ifstream file("/proc/self/exe", std::ios::binary);
  const std::string image((std::istreambuf_iterator<char>(file)), {});
  const auto* header = reinterpret_cast<const ElfW(Ehdr)*>(image.data());
  const auto* sections = reinterpret_cast<const ElfW(Shdr)*>(image.data() + header->e_shoff);
  for (int i = 0; i < header->e_shnum; ++i) {
    if (sections[i].sh_type != SHT_SYMTAB) continue;
    const char* names = image.data() + sections[sections[i].sh_link].sh_offset;
    const auto* table = reinterpret_cast<const ElfW(Sym)*>(image.data() + sections[i].sh_offset);
    for (size_t s = 0; s < sections[i].sh_size / sizeof *table; ++s)
      if (ELF64_ST_TYPE(table[s].st_info) == STT_FUNC && table[s].st_value != 0)
        symbols.emplace(table[s].st_value, names + table[s].st_name);
  }
  return symbols;
}

uintptr_t load_address() {
  uintptr_t base = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* base) {
        *static_cast<uintptr_t*>(base) = info->dlpi_addr;
        return 1;  // the first one is the program
      },
      &base);
  return base;
}

std::string demangle(const std::string& symbol) {
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, nullptr), std::free);
  return text == nullptr ? symbol : text.get();
}

// "void maxim::(anonymous namespace)::f<a::B>(int*)" -> "f<a::B>".
std::string shorten(const std::string& signature) {
  size_t begin = 0;
  int depth = 0;  // of <> and ()
  for (size_t i = 0; i < signature.size(); ++i) {
    const char c = signature[i];
    if (depth == 0 && c == '(' && signature.compare(i, 11, "(anonymous ") != 0)
      return signature.substr(begin, i - begin);
    if (c == '<' || c == '(') ++depth;
    if (c == '>' || c == ')') --depth;
    if (depth == 0 && (c == ' ' || c == ':')) begin = i + 1;
  }
  return signature.substr(begin);
}

}  // namespace

std::string function_name(const void* function) {
  static const std::map<uintptr_t, std::string> symbols = read_symbols();
  static std::map<const void*, std::string> names;  // under the device's lock
  const auto [name, is_new] = names.try_emplace(function);
  if (is_new) {
    const auto symbol = symbols.find(reinterpret_cast<uintptr_t>(function) - load_address());
    name->second = symbol == symbols.end() ? "of unknown name" : shorten(demangle(symbol->second));
  }
  return name->second;
}

}  // namespace maxim_emulated
