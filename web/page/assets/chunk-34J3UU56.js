import{a as o}from"./chunk-EA2KCMJF.js";var e=o(""),r=o([]);export{e as a,r as b};
