// Package configs is the one typed configuration of a run and the files shipped with the program.
//
// [Run] composes the Config types of the packages. A file is decoded strictly over the defaults ([Load]), --set
// overrides go on top, and the whole is validated once; after that nobody checks it again. Every shipped file lies
// here, is embedded, and documents each field that it sets; reference.yaml holds and documents every field there is.
// To ship another configuration, add FILE.yaml: the tests find it.
package configs
