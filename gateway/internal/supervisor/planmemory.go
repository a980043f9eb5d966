package supervisor

import (
	"context"
	"os"

	"github.com/tinsmith/tinsmith/plugins"
)

// PlanMemory has a plugin program plan what memory a model takes, in the environment of such a process. The error is plugins.ErrUnplanned if this program cannot.
func PlanMemory(ctx context.Context, program string, req plugins.PlanRequest) (plugins.Plan, error) {
	return plugins.PlanMemory(ctx, program, allowed(os.Environ()), req)
}
