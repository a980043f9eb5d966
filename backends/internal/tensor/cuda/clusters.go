package cuda

import (
	"fmt"
	"log/slog"

	"github.com/tinsmith/tinsmith/cudart"
)

// checkClusters has the process that checks compare products by clusters with those by warps, and write a cudart.ClusterCheck.
func checkClusters(v *cudart.Device) error {
	return tell(v.CheckClusters())
}

// CheckClusters has another process compare products of few rows by clusters with those by warps on a device, bit by bit, and take the times of both with
// weights in blocks. As with CheckWarpgroups the program must have the same package
// in it.
func CheckClusters(ordinal int, libraries []string) (cudart.ClusterCheck, error) {
	return foundElsewhere[cudart.ClusterCheck](checkTask{Ordinal: ordinal, Libraries: libraries, Clusters: true})
}

// clustersFinding is what a check found, or why it found nothing.
type clustersFinding struct {
	cudart.ClusterCheck
	err error
}

// refusal is why clusters are not to be used; nil if they are.
func (f *clustersFinding) refusal() error {
	if f.err != nil {
		return fmt.Errorf("check of products by clusters: %w", f.err)
	}
	if f.Clusters >= f.Warps {
		return fmt.Errorf("products by clusters have the same bits and take longer: %v, and %v without", f.Clusters, f.Warps)
	}
	return nil
}

// clusters finds out whether a device that is not open yet can use them. Its error says why not.
func (o *Options) clusters(driver *cudart.Driver, info cudart.Information, ordinal int, known *known) error {
	found, first := known.clusters.of(kindOf(driver, info), func() (f clustersFinding) {
		f.ClusterCheck, f.err = CheckClusters(ordinal, o.Libraries)
		return f
	})
	if err := found.refusal(); err != nil {
		return fmt.Errorf("%w: %w", ErrProducts, err)
	}
	if first {
		slog.Info("products of few rows use clusters", "device", info.Name, "with", found.Clusters, "without", found.Warps)
	}
	return nil
}

// inBlocks says whether weights are to lie in blocks.
func (o *Options) inBlocks() bool {
	return o.Products == ProductsBulk || o.Products == ProductsClusters
}
