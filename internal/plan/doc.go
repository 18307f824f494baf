// Package plan reckons what a run needs of its GPUs before any is rented.
package plan
