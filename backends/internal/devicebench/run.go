package main

import (
	"context"
	"fmt"
	"os"
	"time"
)

// run does everything and writes the report, also of a device that fails; the error then says so.
func run(ctx context.Context, path string) error {
	facts, err := gather(nil)
	if err != nil {
		return fmt.Errorf("there is no GPU to measure: %w", err)
	}
	r := report{Time: time.Now().UTC(), Facts: facts}
	for _, t := range suites() {
		r.Suites = append(r.Suites, t.run(ctx))
	}
	for _, w := range workloads {
		fmt.Println("==", w.Shape.Name)
		results, err := measure(ctx, w, nil, len(facts.Devices))
		if err != nil {
			results = append(results, result{Shape: w.Shape.Name, What: "all that follows", Failure: err.Error()})
		}
		r.Results = append(r.Results, results...)
	}
	text := r.markdown()
	fmt.Print(text)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		return err
	}
	if n := r.failures(); n > 0 {
		return fmt.Errorf("%d failures, see %s", n, path)
	}
	return nil
}
