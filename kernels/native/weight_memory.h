// Memory for weights, in the system's large pages where it has them. It knows no matrix.
//
// A step reads every weight once, and the processor looks up each page it comes to: with pages of 4 KiB a layer's
// matrix of some hundred KiB waits for that more often than for its bytes.
#pragma once

#include <cstdint>
#include <memory>

namespace graftlm {

class WeightMemory {
 public:
  // Zeros that begin at a cache line. Those of one model lie one behind the other, since a large page is larger than
  // most of its matrices; memory goes back to the system when the last of such neighbours has gone.
  explicit WeightMemory(int64_t bytes);
  WeightMemory() = default;

  uint8_t* data() const { return data_; }

 private:
  class Region;

  std::shared_ptr<Region> region_;
  uint8_t* data_ = nullptr;
};

}  // namespace graftlm
