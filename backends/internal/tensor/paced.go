package tensor

// Paced is implemented by devices whose operations return before they are done.
type Paced interface {
	// Pace marks what has been launched so far, and waits for what the call before has marked: a host that calls it after every step is ahead of the device by two steps at most, and the device always has the next one. Two calls with
	// nothing between them wait for everything.
	Pace() error
}
