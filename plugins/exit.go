package plugins

import (
	"log/slog"
	"os"
	"time"
)

// ExitMessage is what Exit logs; the attribute "error" has the reason.
const ExitMessage = "the backend ends itself"

// Exit is how a plugin program ends when it is of no more use: when a device is lost, or a rank hangs. The gateway tells the reason, of which the first line should say it all, starts another process and brings the
// runs back.
func Exit(reason error) {
	slog.Error(ExitMessage, "error", reason)
	noteFault(reason)
	os.Exit(1)
}

// Patience is how long a plugin program should wait for a part of itself before it ends with Exit: half of what the gateway waits for the whole, so that the reason is told before. It is 0, for ever, where no gateway
// has set a time.
func Patience() time.Duration {
	d, err := time.ParseDuration(os.Getenv(EnvProgressTimeout))
	if err != nil {
		return 0
	}
	return d / 2
}
