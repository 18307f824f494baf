package env

import "context"

// digester is a driver whose images have content addresses.
type digester interface {
	Digest(ctx context.Context, image string) (string, error)
}

// Digest is the content address of an image, "" where the driver knows of none: for it, the name is all there is. Kinds:
// not_found (no such image), canceled, unavailable.
func (e *Env) Digest(ctx context.Context, image string) (string, error) {
	d, ok := e.driver.(digester)
	if !ok {
		return "", nil
	}
	digest, err := d.Digest(ctx, image)
	if err != nil {
		return "", classify("env: digest", err)
	}
	return digest, nil
}
