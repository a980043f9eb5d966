package supervisor

import (
	"context"
	"encoding/json"
	"os"

	"github.com/tinsmith/tinsmith/plugins"
)

// CheckConfig has a plugin program check a `backend:` section as it would when it loads, in the environment of such a process. The error is plugins.ErrUnchecked if this program cannot tell before.
func CheckConfig(ctx context.Context, program string, section json.RawMessage) error {
	return plugins.CheckConfig(ctx, program, allowed(os.Environ()), section)
}
