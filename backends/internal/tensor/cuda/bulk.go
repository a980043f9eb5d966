package cuda

import (
	"fmt"
	"log/slog"

	"github.com/tinsmith/tinsmith/cudart"
)

// bulkTask has the process that checks compare products by bulk copies with those by warps, and write a cudart.BulkCheck.
type bulkTask struct {
	Warpgroups bool // products with weights row by row use them
}

func (t *bulkTask) check(v *cudart.Device) error {
	if err := v.UseWarpgroups(t.Warpgroups); err != nil {
		return err
	}
	return tell(v.CheckBulk())
}

// CheckBulk has another process compare products by bulk copies with those by warps on a device, bit by bit, and take the times of a product with a weight in blocks and row by row. warpgroups says that the latter uses them. As with
// CheckWarpgroups the program must have the same package in it.
func CheckBulk(ordinal int, libraries []string, warpgroups bool) (cudart.BulkCheck, error) {
	return foundElsewhere[cudart.BulkCheck](checkTask{Ordinal: ordinal, Libraries: libraries, Bulk: &bulkTask{Warpgroups: warpgroups}})
}

// bulkFinding is what a check found, or why it found nothing.
type bulkFinding struct {
	cudart.BulkCheck
	err error
}

// refusal is why bulk copies are not to be used; nil if they are.
func (f *bulkFinding) refusal() error {
	if f.err != nil {
		return fmt.Errorf("check of products by bulk copies: %w", f.err)
	}
	if f.Blocks >= f.Rows {
		return fmt.Errorf("products by bulk copies have the same bits and take longer: %v, and %v without", f.Blocks, f.Rows)
	}
	return nil
}

// bulk finds out whether a device that is not open yet can use weights in blocks. Its error says why not.
func (o *Options) bulk(driver *cudart.Driver, info cudart.Information, ordinal int, warpgroups bool, known *known) error {
	if !info.Bulk() {
		return fmt.Errorf("%w: bulk copies are for compute capability 9.0, and %s has %d.%d", ErrProducts, info.Name, info.Major, info.Minor)
	}
	found, first := known.bulk.of(fmt.Sprint(kindOf(driver, info), " ", warpgroups), func() (f bulkFinding) {
		f.BulkCheck, f.err = CheckBulk(ordinal, o.Libraries, warpgroups)
		return f
	})
	if err := found.refusal(); err != nil {
		return fmt.Errorf("%w: %w", ErrProducts, err)
	}
	if first {
		slog.Info("products of many rows use bulk copies", "device", info.Name, "with", found.Blocks, "without", found.Rows)
	}
	return nil
}
