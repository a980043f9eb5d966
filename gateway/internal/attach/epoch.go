package attach

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// Where the last epoch is.
const (
	inLeases = "leases"
	epochKey = "epoch"
)

// Epoch begins the epoch of a gateway that starts, and has it in the store before anybody is told of it. It is above all that the store has had, and not below the seconds since 1970: a store that was restored from an old backup
// must not fall behind the backends, which remember the highest number.
func Epoch(ctx context.Context, s store.Store, now time.Time) (uint32, error) {
	var last uint32
	r, err := s.Get(ctx, inLeases, epochKey)
	if err == nil {
		err = json.Unmarshal(r.Value, &last)
	} else if errors.Is(err, store.ErrNotFound) {
		err = nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the epoch of leases: %w", err)
	}
	if last == math.MaxUint32 {
		return 0, fmt.Errorf("the epoch of leases has reached %d: there is none above it", last)
	}
	epoch := last + 1
	if seconds := now.Unix(); seconds > int64(epoch) && seconds <= math.MaxUint32 {
		epoch = uint32(seconds)
	}
	value, err := json.Marshal(epoch)
	if err != nil {
		return 0, err
	}
	if err := s.Commit(ctx, store.Batch{Put: []store.Record{{Collection: inLeases, Key: epochKey, Value: value}}}); err != nil {
		return 0, fmt.Errorf("store the epoch of leases: %w", err)
	}
	return epoch, nil
}
