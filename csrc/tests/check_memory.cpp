#include <cstring>
#include <memory>
#include <vector>

#include "tests/expect.h"
#include "tests/selfcheck.h"

namespace ramet {
namespace {

constexpr size_t kLarge = size_t{5} << 20;

bool is_of_one_block(const Quarry::Piece& a, const Quarry::Piece& b) {
  return !a.owner_before(b) && !b.owner_before(a);
}

// Sizes that fill several blocks, with some that are blocks of their own between them. Each piece is filled
// before the next is cut, and is still so when all are.
void check_pieces() {
  const size_t sizes[] = {0, 1, 63, 64, 65, 0, 4097, size_t{3} << 20, kLarge, size_t{4} << 20};
  Quarry quarry;
  std::vector<Quarry::Piece> pieces;
  std::vector<size_t> wanted;
  for (int turn = 0; turn < 4; ++turn) {
    for (const size_t size : sizes) {
      pieces.push_back(quarry.cut(size));
      wanted.push_back(size);
      std::memset(pieces.back().get(), static_cast<int>(pieces.size()), size);
    }
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    const uint8_t* bytes = pieces[i].get();
    expect(bytes != nullptr && reinterpret_cast<uintptr_t>(bytes) % 64 == 0, "quarry: where a piece is");
    const bool is_kept =
        wanted[i] == 0 || (bytes[0] == i + 1 && std::memcmp(bytes, bytes + 1, wanted[i] - 1) == 0);
    expect(is_kept, "quarry: pieces do not overlap");
    expect((pieces[i].use_count() == 1) == (wanted[i] == kLarge), "quarry: a large piece is alone");
    for (size_t j = 0; j < i; ++j) expect(bytes != pieces[j].get(), "quarry: no two at one place");
  }
}

// What is freed too soon, or never, is for the sanitizers to find.
void check_lives() {
  std::weak_ptr<uint8_t[]> first_block, second_block;
  Quarry::Piece kept;
  {
    Quarry quarry;
    Quarry::Piece first = quarry.cut(100);
    kept = quarry.cut(size_t{2} << 20);
    expect(is_of_one_block(first, kept), "quarry: small pieces share a block");
    first_block = first;
    first.reset();
    std::vector<Quarry::Piece> others;
    for (int i = 0; i < 4; ++i) others.push_back(quarry.cut(size_t{4} << 20));
    expect(!is_of_one_block(others[3], kept), "quarry: a full block is followed by another");
    second_block = others[3];
    others.clear();
    expect(!second_block.expired(), "quarry: the block that is cut from stays");
  }
  expect(second_block.expired(), "quarry: a block without pieces goes with its quarry");
  expect(!first_block.expired(), "quarry: a block lives as long as any piece");
  std::memset(kept.get(), 1, size_t{2} << 20);
  kept.reset();
  expect(first_block.expired(), "quarry: and no longer");
}

}  // namespace

void check_memory() {
  check_pieces();
  check_lives();
}

}  // namespace ramet
