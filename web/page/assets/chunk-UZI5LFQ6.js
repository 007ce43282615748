import{a as o}from"./chunk-OCVKVJVM.js";var e=o(""),r=o([]);export{e as a,r as b};
